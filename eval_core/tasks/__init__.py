"""From a task of the spec and its file of examples to requests: which tokens to read, which to score."""

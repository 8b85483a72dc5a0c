"""The steps of the pipeline, one folder each: a kfp container component and what its container runs."""

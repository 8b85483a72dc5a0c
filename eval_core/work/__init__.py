"""The workers: claim shards, compute them, commit them. The only part of the library that imports torch."""

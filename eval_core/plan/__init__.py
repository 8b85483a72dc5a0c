"""The plan: which requests, in which micro-batches, in which shards. It knows nothing of the ranks."""

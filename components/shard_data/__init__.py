"""Step 1: turn a spec into a plan of shards."""

"""Step 3: reduce the committed shards and check them."""

"""Tasks of the lm-evaluation-harness: its code builds the requests and scores the answers, ours answers them."""

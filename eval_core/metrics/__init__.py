"""Metric states that merge exactly, the values they give, and how uncertain those are."""

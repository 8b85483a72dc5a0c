"""The proof: what is checked, against what, and what was found. Compares committed files; imports no torch."""

"""Step 2: compute what is missing, on a cluster's pods or in the step's own container."""

"""Exit task: end the run's job, and report whatever the run has."""

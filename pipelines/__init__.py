"""Pipelines composed of the components, and the submitter that CI calls."""

"""Steps: one a file."""

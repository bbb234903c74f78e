"""Readers of data files: one a file."""

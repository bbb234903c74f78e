"""Rows of files: which columns there are, and what they become."""

"""Merge transforms and strategies: one a file."""

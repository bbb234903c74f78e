"""Merge transforms and strategies, one per file."""

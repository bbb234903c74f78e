"""Losses of ranking: one a file."""

"""Losses of ranking, each in a file."""

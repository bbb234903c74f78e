"""Losses of ranking, each in a file of its own."""

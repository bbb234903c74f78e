"""Samplers: one a file."""

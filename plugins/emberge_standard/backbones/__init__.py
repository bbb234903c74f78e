"""Backbones: one a file."""

"""Scores of weightings on a set."""

"""Evaluation sets: which there are, their checks, and their texts in memory."""

"""Evaluation sets: their choice, their checks, and their texts in memory."""

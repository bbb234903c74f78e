"""Scores of a model on another model's index: their columns, and the share of the gain that is kept."""

"""Runs of recipes: one step after another or side by side, recorded and resumed."""

"""Checks of a recipe, or of its results, that do none of the work."""

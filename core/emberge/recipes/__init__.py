"""Recipes: from YAML to typed steps, checked, run, resumed and verified."""

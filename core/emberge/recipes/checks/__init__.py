"""Checks of recipes and results: preflight, status, verification."""

"""Checks of recipes and results: preflight, rehearsal, status, verification."""

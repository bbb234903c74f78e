"""Reporters: listeners that show or write what happened."""

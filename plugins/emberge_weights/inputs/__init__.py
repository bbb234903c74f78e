"""Inputs of a search: its sets, its members, and the vectors of both."""

"""Batch plans: which rows each step takes, as a pure function of manifest, seed and step."""

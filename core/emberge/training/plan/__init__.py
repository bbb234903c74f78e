"""Batch plans: the rows of each step, as a pure function of manifest, seed and step."""

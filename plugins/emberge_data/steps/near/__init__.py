"""Likeness of texts: normalised text, shingles, MinHash, and runs of words that two texts share."""

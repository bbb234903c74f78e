"""Thresholds of similarity, which mean something else under another model: their map at equal error."""

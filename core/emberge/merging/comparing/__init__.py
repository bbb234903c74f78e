"""Comparison of two models' weights, layer by layer."""

"""Weights by layer: coefficients by member and block, fitted by gradients."""

"""Strategies that treat tensors as directions: angles from one Gram matrix."""

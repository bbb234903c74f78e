"""Strategies that take weighted sums of tensors."""

"""Mixture-of-experts architectures that transformers does not have."""

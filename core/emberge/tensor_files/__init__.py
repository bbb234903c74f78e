"""Weights on disk: headers, readers, writers, and tensors that are computed while they are read."""

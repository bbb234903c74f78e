"""Torch arithmetic that several rooms share: buffers, reproducible noise, similarity."""

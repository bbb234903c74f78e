"""Spaces of embeddings: a model's passport, and whether vectors of two models may be mixed."""

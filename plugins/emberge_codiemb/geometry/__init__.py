"""Geometry of models: spread of the states of a text's tokens, and drift of embeddings from a parent's."""

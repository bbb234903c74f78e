"""Backbones beside one vector a text: token vectors, sparse vectors, and scores of pairs."""

"""Sizes of a fit by layer."""

from __future__ import annotations

# Steps of a fit, each with a batch of every set.
ROUNDS = 40
# Queries, or pairs, of a batch; documents that belong to a query, and others that are near it.
QUERIES = 16
PAIRS = 32
OWN = 2
NEAR = 3
# Texts of a batch at most, and those that run together, whose activations are in memory at once.
TEXTS = max(QUERIES * (1 + OWN + NEAR), 2 * PAIRS)
CHUNK = 16

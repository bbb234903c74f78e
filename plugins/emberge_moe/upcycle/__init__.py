"""Sparse upcycling: a dense model's feed-forward blocks copied into experts behind a router."""

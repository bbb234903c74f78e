"""Transforms that keep a part of every change, and the consensus that joins them."""

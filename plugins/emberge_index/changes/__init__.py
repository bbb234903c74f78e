"""Queries that find other documents under a new model: which, and how much changes for them."""

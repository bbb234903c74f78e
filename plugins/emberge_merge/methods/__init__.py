"""Merge transforms and strategies, by the idea that they share."""

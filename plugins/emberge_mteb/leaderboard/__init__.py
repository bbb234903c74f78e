"""Entries of mteb's leaderboard for models that are published."""

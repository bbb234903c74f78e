"""Losses of trainings: pure functions of a batch."""

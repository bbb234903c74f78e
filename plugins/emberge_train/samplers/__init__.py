"""Samplers of trainings: rows of each batch by a seed alone."""

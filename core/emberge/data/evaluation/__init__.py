"""Evaluation data: local sets in the layouts that benchmarks use."""

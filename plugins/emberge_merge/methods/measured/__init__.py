"""Strategies that weigh by statistics measured on data."""

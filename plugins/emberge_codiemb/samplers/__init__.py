"""Samplers of CoDiEmb."""

"""Samplers of CoDiEmb: tasks mixed within a batch."""

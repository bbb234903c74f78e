"""Downcycling: experts averaged into a dense model."""

"""Vocabularies of models that are merged: read, compared and aligned row by row."""

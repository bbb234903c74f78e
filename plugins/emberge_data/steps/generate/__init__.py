"""Queries for documents: taken from the documents' structure, or written by a model; parts by document."""

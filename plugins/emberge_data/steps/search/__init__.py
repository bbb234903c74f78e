"""Exact search of documents by cosine: scores, nearest documents, and how many score higher."""

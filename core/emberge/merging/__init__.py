"""Merging: one request, planned from headers alone, then streamed tensor by tensor."""

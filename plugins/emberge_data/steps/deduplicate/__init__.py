"""Removal of rows that others repeat, word for word or nearly."""

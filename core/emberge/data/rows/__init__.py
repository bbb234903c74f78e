"""Columns of files, and the rows that are read from them."""

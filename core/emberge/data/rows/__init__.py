"""Columns of files, and the rows read from them."""

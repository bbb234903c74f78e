"""The result: its file, its table and its figure."""

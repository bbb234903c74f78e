"""Data without a download, from installed packages."""

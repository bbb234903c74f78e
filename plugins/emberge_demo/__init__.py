"""Data without a download, of installed packages or drawn, and controls: random towers and shuffled parts."""

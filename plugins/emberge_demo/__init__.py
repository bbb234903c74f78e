"""Data without a download (from installed packages, or drawn) and controls: random towers, shuffled parts."""

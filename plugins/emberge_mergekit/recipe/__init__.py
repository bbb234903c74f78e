"""mergekit's configs translated to recipes."""

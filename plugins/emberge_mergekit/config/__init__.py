"""mergekit's YAML, read with the line of every key."""

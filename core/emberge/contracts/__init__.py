"""The nouns of emberge, one a file. Importing any of them imports no torch."""

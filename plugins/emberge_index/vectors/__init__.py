"""Files of vectors, rewritten by a map in bounded memory, piece by piece."""

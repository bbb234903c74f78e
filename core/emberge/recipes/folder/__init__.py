"""The folder of a run, OUT: what is in it, where a result is found, and what may be removed from it."""

"""Maps between the vectors of two models: fitted, measured, kept in a file, applied."""

"""Training data: catalogues, files and hub data sets as examples, stored once."""

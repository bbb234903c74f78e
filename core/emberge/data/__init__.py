"""Data files become datasets: catalogues, columns, rows that are checked before anything trains."""

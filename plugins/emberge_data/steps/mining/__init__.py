"""Choice of hard negatives: thresholds of teachers, ranks, draws."""

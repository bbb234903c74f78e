"""Models that begin from nothing: weights drawn at random, and a tokenizer trained on texts."""

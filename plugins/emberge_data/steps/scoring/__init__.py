"""Scores of pairs: the step that writes them, and the models that give them."""

"""Mixtures of training data: what each dataset is worth, from short trainings of each."""

"""Samplers of BOOM: bags, and subsets that a study of interactions found."""

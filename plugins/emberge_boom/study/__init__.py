"""The study of interactions: the effect of training two datasets together on their losses."""

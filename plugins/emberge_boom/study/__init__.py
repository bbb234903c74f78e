"""The study of interactions: which datasets help one another when they are trained together."""

"""Forgetting: rows of keys are taken out of an OUT's models, and a result is shown not to have seen them."""

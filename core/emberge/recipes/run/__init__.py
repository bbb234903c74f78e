"""Runs of recipes: steps run one after another or in parallel, are recorded, and are resumed."""

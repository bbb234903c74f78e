"""The only callers of a model: embedding texts with and without gradients, in chunks under a token budget."""

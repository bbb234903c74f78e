"""Statistics of models (Fisher information, Gram matrices, norms of changes) that merges read."""

"""Statistics files (Fisher information, Gram matrices, norms) that strategies read."""

"""The exact k-th largest magnitude of a tensor, found without sorting it."""

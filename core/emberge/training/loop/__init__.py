"""The training loop: session, optimizer, token budget, metrics, checkpoints, early stopping, resuming."""

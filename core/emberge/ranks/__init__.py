"""Several processes as one training: collectives, gathered batches, sharded weights."""

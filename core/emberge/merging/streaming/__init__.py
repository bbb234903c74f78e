"""The streaming of tensor jobs: scheduling, devices, memory, the journal, and building a checkpoint."""

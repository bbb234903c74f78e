"""LoRA adapters as inputs of a merge: read, checked against their base, applied while tensors are read."""

"""Model cards in the hub's format."""

"""Search: candidates, the choice among them, and real merges."""

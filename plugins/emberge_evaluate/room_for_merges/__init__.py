"""Room for merges to gain: their members' ensemble and oracle, and the linear merge to beat."""

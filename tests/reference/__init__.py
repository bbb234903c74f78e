"""Plain versions of what emberge does, to be read first and to hold emberge to."""

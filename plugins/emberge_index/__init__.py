"""The name of an entry point, without any component."""

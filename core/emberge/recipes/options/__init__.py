"""YAML nodes as typed options of components."""

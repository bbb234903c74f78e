"""Launchers: where ready steps run."""

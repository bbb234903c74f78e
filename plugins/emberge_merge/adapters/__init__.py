"""Merges whose result is an adapter: sums of low-rank factors, truncated and written in peft's format."""

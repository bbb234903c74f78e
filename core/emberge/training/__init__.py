"""The GPU-aware training runner, and the one place that calls a model."""

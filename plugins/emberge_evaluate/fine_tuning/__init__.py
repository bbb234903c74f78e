"""Evaluation by fine-tuning: a fresh head and the model under it are trained on tasks, then tested."""

"""Scores: measured once per model content and task, kept on disk, and grouped by task."""

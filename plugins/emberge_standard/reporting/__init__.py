"""What a report and a model card are made of: scores, curves, distances, charts, pages."""

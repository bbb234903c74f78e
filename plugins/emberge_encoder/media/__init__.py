"""Encoders that read images and clips: what a folder reads, the features of media, and the model."""

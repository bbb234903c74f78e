"""Composition of an encoder of text, images and sound from specialists of one family."""

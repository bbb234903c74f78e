"""Documentation derived from components: lists, pages, JSON Schema, new plugins."""

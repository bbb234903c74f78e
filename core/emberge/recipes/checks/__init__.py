"""What can be found out about a recipe or its results without doing the work."""

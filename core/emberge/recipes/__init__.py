"""The front of the house: recipes are read, checked, rehearsed and run."""

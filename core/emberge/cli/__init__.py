"""The command line: arguments, and one call for each verb. Only `__main__` imports this room."""

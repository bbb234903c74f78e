"""The command line: arguments, and one call for each verb."""

"""Names of tensors: those of an architecture and their aliases, of tied copies, and of heads for tasks."""

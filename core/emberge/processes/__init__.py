"""Child processes: those that end with their parent, steps in processes of their own, ranks."""

"""Files on disk: writing and publishing at once or not at all, locks, free space, hashes."""

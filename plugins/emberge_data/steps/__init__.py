"""Steps over data: filter, mine, deduplicate, decontaminate, split."""

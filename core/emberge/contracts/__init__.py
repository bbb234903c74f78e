"""The nouns: what plugins implement and runners call. Nothing here loads torch when it is imported."""

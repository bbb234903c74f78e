"""The `select` step: models ranked on development data, and the best of them kept."""

"""A probe of what a model forgot: small evaluation sets of texts that every machine has."""

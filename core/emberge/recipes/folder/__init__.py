"""The folder of a run: results, fingerprints, provenance, and where models are found."""

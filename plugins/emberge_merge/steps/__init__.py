"""Steps that merge: whole models, adapters, and fine-tunes reduced to adapters."""

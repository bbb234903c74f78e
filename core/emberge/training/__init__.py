"""Training one model: a plan of batches, tables of examples, and the loop over them."""

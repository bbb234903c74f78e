"""Steps from training sets to training sets: filters, miners, and their shared parts."""

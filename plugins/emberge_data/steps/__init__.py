"""Steps from training sets to training sets, in modules that end with `_step`, and what they share."""

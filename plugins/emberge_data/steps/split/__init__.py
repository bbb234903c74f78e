"""Development parts that share nothing with the training part."""

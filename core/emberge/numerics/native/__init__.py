"""The compiled kernels' source in C, and the program that builds them."""

"""Documents to embed anew first after a translation, and the gain of embedding a share of them."""

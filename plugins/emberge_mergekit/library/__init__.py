"""mergekit itself: the one door to the library, its methods, and the strategy that runs them."""

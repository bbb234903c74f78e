"""Examples of datasets as the texts and columns of a batch."""

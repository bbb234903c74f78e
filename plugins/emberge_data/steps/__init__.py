"""Steps that take training sets and leave training sets: filters, miners, and what they share."""

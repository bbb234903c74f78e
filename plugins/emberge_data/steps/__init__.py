"""Steps that make better training data of training data: a catalogue goes in, a catalogue comes out."""

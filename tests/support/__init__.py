"""What tests of many rooms share."""

"""Removal of test texts from training sets, with a record of the findings."""

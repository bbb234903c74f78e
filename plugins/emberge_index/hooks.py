"""The name of an entry point that installed copies of this project have, without any component.

No line belongs here.
"""

"""The network: which addresses may be asked, and connections that are checked, bounded and can be ended."""

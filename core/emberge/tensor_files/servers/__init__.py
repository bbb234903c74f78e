"""Files on servers, read by ranges."""

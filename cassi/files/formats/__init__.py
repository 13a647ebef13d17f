"""One file a format: what its bytes say, as a `Container`."""

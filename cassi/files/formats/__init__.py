"""One module per file format, each of which returns a `Container`."""

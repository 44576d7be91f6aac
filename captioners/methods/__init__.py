"""One adapter per paper. Each file here registers itself; nothing lists them by hand."""

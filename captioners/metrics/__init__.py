"""Numbers about captions behind one interface: `base.measure(rows)` runs every metric that applies."""

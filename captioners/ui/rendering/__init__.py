"""Pure functions that make HTML and figures from results."""

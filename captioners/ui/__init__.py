"""The page and its API: `tabs` lay out and wire `components`, `rendering` makes HTML and figures, `runtime` runs
methods.
"""

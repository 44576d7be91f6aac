"""The page. Pure functions make HTML and figures from results, `studio` runs methods, `compare` and `page` lay out and wire."""

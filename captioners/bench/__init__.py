"""Speed as ratios: ours against what a user would do instead, in one process, on the same weights, in alternation.

A ratio above 1 means that ours is faster. One file holds one group of contests, each made known by `@contest`:
`python -m captioners bench` finds, runs and prints them, where we lose too. Nothing here is a test.
"""

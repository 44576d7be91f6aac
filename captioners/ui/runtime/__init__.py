"""What runs methods for the page: one lab for everyone, a cache, model threads, lent GPUs."""

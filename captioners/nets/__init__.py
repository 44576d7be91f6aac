"""Torch modules and samplers. Nothing here reads a file or knows where weights come from."""

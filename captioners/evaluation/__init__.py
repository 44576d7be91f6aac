"""Captions of a whole data set, measured: read it, caption it with some methods (or take given captions), score.

The work is cut into batches of files. An engine runs them, on this machine or on many; a journal keeps what is done, so
that a killed run goes on. What cannot be read is listed under `failed` with its reason; everything else counts.
"""

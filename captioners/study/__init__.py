"""Blind studies: which of two captions do people prefer? Questions in, votes kept in a database, figures out."""

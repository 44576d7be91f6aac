"""Captions broken on purpose."""

import random
from collections import Counter

import pytest

from captioners.training.broken_text import SHORTEST, broken

ROW, OTHER = [1, 2, 3, 4, 5], [11, 12, 13]


def test_what_is_broken_is_not_what_it_was():
    rng = random.Random(0)
    assert all(broken(ROW, OTHER, rng) != ROW for _ in range(200))


def test_every_way_of_breaking_happens():
    rng = random.Random(0)
    made = [broken(ROW, OTHER, rng) for _ in range(200)]
    assert any(len(row) > len(ROW) for row in made), "a run is said twice"
    assert any(row != ROW and Counter(row) == Counter(ROW) for row in made), "tokens change places"
    assert any(set(row) & set(OTHER) for row in made), "another caption's tokens come in"


@pytest.mark.parametrize("row", ([], [1], [1, 2]))
def test_a_row_too_short_to_tell_is_left_as_it_is(row):
    assert len(row) < SHORTEST
    assert broken(row, OTHER, random.Random(0)) == row


def test_a_row_of_one_word_only_does_not_hang():
    assert set(broken([7, 7, 7], [], random.Random(0))) == {7}

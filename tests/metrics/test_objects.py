"""Are the right things named? The word table and the two shares that come from it, worked out by hand."""

import math

import numpy as np
import pytest

from captioners.evaluation.report import Interval, ItemReport, RunReport
from captioners.evaluation.significance import compare
from captioners.metrics.base import CaptionSet, measure
from captioners.metrics.object_words import CLASSES, TABLE, mentions, plural
from captioners.metrics.objects import main_object, names, said_and_right


def test_the_table_has_the_eighty_classes_and_each_is_named_by_its_own_name():
    assert len(CLASSES) == len(set(CLASSES)) == 80
    assert all(names(f"there is a {name} here", name) for name in CLASSES)


@pytest.mark.parametrize("name", [c for c in CLASSES if c not in ("skis", "scissors", "person", "sheep")])
def test_a_class_is_named_by_its_plural_too(name):
    *before, last = name.split()
    irregular = {"knife": "knives", "mouse": "mice"}.get(last)
    assert names("two " + " ".join([*before, irregular or plural(last)]), name)


def test_the_table_repeats_no_expression_within_a_class():
    for line in TABLE.replace("\n    ", " ").strip().splitlines():
        expressions = [e.strip() for e in line.partition(": ")[2].replace(";", ",").split(",")]
        assert len(expressions) == len(set(expressions)), line


@pytest.mark.parametrize(
    ("caption", "name", "said"),
    [
        ("A puppy on the sofa", "dog", True),
        ("A puppy on the sofa", "couch", True),
        ("A hot dog in a bun", "dog", False),
        ("hot-dogs on a plate", "hot dog", True),
        ("A teddy bear on a bed", "bear", False),
        ("A stuffed bear on a bed", "teddy bear", True),
        ("a bus stop at night", "bus", False),
        ("Two motor bikes", "motorcycle", True),
        ("a bike against a wall", "bicycle", True),
        ("a bike against a wall", "motorcycle", True),
        ("a bowl of fruit", "banana", True),
        ("a clean kitchen", "oven", True),
        ("a man in an orange shirt", "person", True),
        ("", "dog", False),
    ],
)
def test_captions_name_what_a_reader_would_say_they_name(caption, name, said):
    assert names(caption, name) is said


def test_vague_words_never_accuse():
    assert said_and_right("a sign, fruit, furniture and a kitchen", []) == (0, 0)
    assert said_and_right("a man in an orange shirt", ["person"]) == (1, 1)


def test_a_word_is_right_if_any_class_it_may_mean_is_there():
    assert said_and_right("a surfer", ["surfboard"]) == (1, 1)
    assert said_and_right("a bear on a shelf", ["teddy bear"]) == (1, 1)


def test_an_object_that_is_said_twice_counts_once():
    assert said_and_right("a dog chases a dog and a cat", ["dog"]) == (2, 1)


def test_a_mention_tells_where_its_words_stand():
    found = mentions(["a", "black", "fire", "hydrant", "near", "a", "dog"])
    assert [(m.start, m.end, set(m.names)) for m in found] == [(2, 4, {"fire hydrant"}), (6, 7, {"dog"})]


def test_the_main_object_is_the_largest_that_is_no_person():
    assert main_object(["person", "dog", "bed"]) == "dog"
    assert main_object(["person"]) == "person"
    assert main_object([]) is None


def test_shares_are_over_pictures_with_objects_and_over_all_objects_said():
    boxed = [("dog", "person"), ("cat",), (), ("bus",)]
    captions = ["a dog and a horse and a man", "a cat", "a tree", "a red thing"]
    results = measure(CaptionSet(list("abcd"), captions, objects=boxed))
    # dog, cat, not the bus; nothing was boxed in the third
    assert results["objects_named"].mean == pytest.approx(2 / 3)
    assert results["objects_right"].mean == pytest.approx(3 / 4)  # dog, man, cat, but no horse
    assert results["objects_named"].low <= 2 / 3 <= results["objects_named"].high
    assert np.isnan(results["objects_right"].items[2:]).all()
    assert results["objects_right"].items[:2] == pytest.approx([2 / 3, 1])


def test_runs_are_compared_over_the_items_that_have_a_share_in_both():
    def run(shares):
        items = [ItemReport(str(i), "", {"objects_right": share}) for i, share in enumerate(shares)]
        return RunReport("m", {}, len(items), {"objects_right": Interval(0.5, 0.4, 0.6)}, items)

    (row,) = compare(run([0.0, math.nan, 0.5, 0.0]), run([1.0, 1.0, 0.5, math.nan])).metrics
    assert (row.tests.wins, row.tests.losses) == (1, 0)


# -------------------------------------------------------------------------------------------------------- METEOR


def test_meteor_matches_stems_and_says_how_words_were_matched():
    result = measure(CaptionSet(["x"], ["a dog runs"], [["a dog running", "a boat"]]))["meteor"]
    assert result.mean == pytest.approx(1 - 0.5 / 27)  # three words in one chunk
    assert "exact" in result.encoder and "stem" in result.encoder


def test_meteor_uses_wordnet_where_its_files_are(monkeypatch):
    from captioners.metrics import meteor

    class Lemma:
        def name(self):
            return "hound"

    class Synset:
        def lemmas(self):
            return [Lemma()]

    class WordNet:
        def ensure_loaded(self):
            pass

        def synsets(self, word):
            return [Synset()] if word == "dog" else []

    rows = CaptionSet(["x"], ["a dog"], [["a hound"]])
    monkeypatch.setattr(meteor, "wordnet", WordNet())
    (found,) = meteor.meteor(rows)
    assert "WordNet" in found.encoder
    assert found.mean == pytest.approx(1 - 0.5 / 8)

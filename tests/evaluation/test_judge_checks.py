"""What the judge can tell: pairs made by hand, and the command on a few files."""

import json
import random
from pathlib import Path

import pytest
import torch

from captioners.evaluation.dataset import Item
from captioners.evaluation.judge_checks import Pair, agreement, main, share_told, strangers, swapped
from captioners.resources import EXAMPLES


def item(*captions: str, objects: tuple[str, ...] = ()) -> Item:
    return Item("a.jpg", Path("a.jpg"), "image", captions, objects=objects)


def test_a_strange_caption_is_of_another_picture():
    items = [item(f"caption {i}") for i in range(5)]
    pairs = strangers(items, random.Random(0))
    assert [p.right for p in pairs] == [f"caption {i}" for i in range(5)]
    assert all(p.wrong != p.right for p in pairs)


def test_the_main_objects_name_gives_way_to_one_that_is_not_there():
    items = [
        item("a sunny day", "a man rides a brown horse", objects=("person", "horse")),
        item("a street", objects=("car",)),  # nobody names it
    ]
    (pair,) = swapped(items, random.Random(0))
    assert pair.right == "a man rides a brown horse"
    before, after = pair.right.split(), pair.wrong.split()
    assert before[:5] == after[:5] and before[5:] != after[5:]
    assert after[5:] not in (["horse"], ["person"])


class Letters:
    """Texts as counts of two letters."""

    def embed_text(self, texts):
        return torch.tensor([[float(t.count("a")), float(t.count("b"))] for t in texts])


def test_a_pair_is_told_where_the_right_caption_scores_higher():
    media = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    pairs = [Pair(0, "aa", "bb"), Pair(1, "b", "a"), Pair(1, "a", "b"), Pair(0, "a", "a")]  # a tie is not told
    assert share_told(Letters(), media, pairs) == 0.5


def test_agreement_is_the_mean_correlation_within_a_picture():
    one = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    assert agreement(one, 10 * one + 5) == pytest.approx(1)
    assert agreement(one, torch.stack([one[0], -one[1]])) == pytest.approx(0)


def test_the_command_prints_every_figure(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    rows = [("cat", "a cat looks at the camera"), ("coffee", "a cup of coffee on a table"), ("dog", "a dog on grass")]
    lines = []
    for (name, caption), thing in zip(rows, ("cat", "cup", "dog"), strict=True):
        (tmp_path / "images" / f"{name}.jpg").write_bytes((EXAMPLES / f"{name}.jpg").read_bytes())
        lines.append(json.dumps({"image": f"{name}.jpg", "captions": [caption] * 3, "objects": [thing]}))
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    assert main([str(tmp_path)]) == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["judge_stranger"]) == 1
    assert {"judge_swapped", "ranker_stranger", "agreement"} <= set(printed)


def test_a_folder_that_is_no_data_set_is_refused_with_a_sentence(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "is not a data set" in capsys.readouterr().err

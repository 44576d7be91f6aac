"""Method 2's checks: tables by hand, and every check end to end on a few files."""

import json

import fakes
import pytest
import torch

from captioners import registry
from captioners.evaluation import classifier_checks as checks
from captioners.evaluation.classifier_checks import RealCaptions, accuracy_table, main, read_real_captions
from captioners.types import CaptionLabError


class LongWords:
    """Says yes to texts of more than two words."""

    name = "long-words"

    def probability(self, texts):
        return torch.tensor([float(len(t.split()) > 2) for t in texts])


def test_a_classifier_is_right_where_it_says_yes_to_its_own_and_no_to_the_others():
    heard = RealCaptions("barks", "audio", ["a dog barks", "a dog barks very loudly today", "two dogs bark", "rain"])
    seen = RealCaptions("photos", "image", ["a dog", "a dog sits", "a cat", "a man in a red hat"])
    lines = accuracy_table([heard, seen], {"audibility": ("audio", LongWords())}).splitlines()
    assert lines[0] == "| captions | of what is | n | audibility right | audibility right, first halves |"
    assert lines[2] == "| barks | heard | 4 | 75.0 % | 25.0 % |"
    assert lines[3] == "| photos | seen | 4 | 50.0 % | 75.0 % |"


@pytest.fixture
def data(tmp_path):
    for kind, folder, make, suffix in (
        ("image", "images", fakes.picture, "png"),
        ("audio", "audio", fakes.sound, "wav"),
    ):
        place = tmp_path / kind / folder
        place.mkdir(parents=True)
        names = [f"{i}.{suffix}" for i in range(2)]
        for i, name in enumerate(names):
            make(place / name, i)
        rows = [{kind: name, "captions": ["a dog barks at a cat"], "split": "dev"} for name in names]
        (place.parent / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "real.txt").write_text("a dog barks\n\nrain falls\nwind\n")
    return tmp_path


def test_real_captions_come_from_a_file_or_a_data_set(data):
    assert read_real_captions(f"clotho={data / 'real.txt'}", "audio", 2).texts == ["a dog barks", "rain falls"]
    assert read_real_captions(f"flickr8k={data / 'image'}:dev", "image", None).texts == ["a dog barks at a cat"] * 2
    with pytest.raises(CaptionLabError, match="write NAME=FILE"):
        read_real_captions("clotho", "audio", None)


def test_every_point_of_a_check_is_possible_and_named():
    spec = registry.find(checks.METHOD).spec
    points = [point for some in checks.SWEPT.values() for point in some]
    assert all(spec.settings(**point) for point in points)
    assert len({checks._words(point) for point in points}) == len(points)


def test_every_check_writes_its_table(data, monkeypatch):
    brief = {"max_tokens": 2, "num_steps": 1}
    monkeypatch.setattr(checks, "SWEPT", {name: [brief | points[-1]] for name, points in checks.SWEPT.items()})
    monkeypatch.setitem(checks.SWEPT, "steps", [brief, brief | {"num_steps": 2}])
    out = data / "checks.md"
    places = ["--sounds", f"{data / 'audio'}:dev", "--pictures", f"{data / 'image'}:dev", "--limit", "1"]
    real = ["--heard", f"clotho={data / 'real.txt'}", "--seen", f"photos={data / 'image'}"]
    assert main([*places, *real, "--device", "cpu", "--out", str(out)]) == 0
    text = out.read_text()
    assert text.count("**") == 2 * (1 + 2 * 3)
    for row in ("| clotho | heard | 1 |", "num_steps = 2 |", "guide = visibility |", "target = zerocap, fluency = kl,"):
        assert row in text
    for headings in (
        "| settings | audible | CLIPScore | perplexity | seconds |",
        "| settings | CLIPScore | perplexity | seconds |",
    ):
        assert text.count(headings) == 3
    assert [p.name for p in data.iterdir() if p.name.endswith("journal")] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--only", "accuracy"], "give --heard and --seen"), (["--only", "steps"], "give --sounds and --pictures")],
)
def test_a_check_without_data_says_what_to_give(tmp_path, capsys, arguments, words):
    assert main([*arguments, "--out", str(tmp_path / "out.md")]) == 2
    assert words in capsys.readouterr().err

"""The corpus readers on a made-up folder."""

import json
from pathlib import Path

import pytest

from captioners.evaluation.dataset import read_dataset
from captioners.training import corpus, held_out_clips

DATA = """
[[pictures]]
name = "street"

[[pictures]]
name = "squares"
squeezed = true

[[texts]]
name = "blocked"
files = ["text/blocked.txt"]
of = "image"
layout = "blocks"

[[texts]]
name = "running"
files = ["text/running.txt"]
dev = ["text/running_dev.txt"]
of = "audio"
layout = "runs"

[[texts]]
name = "single"
files = ["text/single.txt"]
of = "audio"

[[sounds]]
name = "folds"
table = "table.csv"
dev_fold = 4

[[sounds]]
name = "labelled"
table = "labels.jsonl"
recording = '^(?P<recording>\\w+)-'
classes = { "dog bark" = "dog" }

[sentences]
audible = "audible.txt"
not_audible = "silent.txt"
"""


@pytest.fixture
def data(job):
    """A tiny folder with a list of its own: two picture sets, two sound sets, three text corpora."""
    for folder in ("street", "squares", "folds", "labelled", "text"):
        (job.data / folder).mkdir(parents=True)
    (job.data / "data.toml").write_text(DATA)
    splits = ["train", "train", "train", "dev"]
    rows = [
        {"image": f"{i}.jpg", "split": split, "captions": [f"picture {i} {k}" for k in "abcde"]}
        for i, split in enumerate(splits)
    ]
    (job.data / "street/captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    square = {
        "image": "s.avif",
        "split": "train",
        "captions": ["a cat"],
        "objects": ["cat", "chair"],
        "size": [640, 480],
    }
    (job.data / "squares/captions.jsonl").write_text(json.dumps(square))
    (job.data / "folds/table.csv").write_text(
        "filename,fold,category,esc10\n1-a.ogg,1,dog,True\n4-b.ogg,4,rain,False\n"
    )
    clips = [{"audio": f"r{i % 40}-{i}.ogg", "label": "dog bark" if i % 2 else "gun shot"} for i in range(80)]
    (job.data / "labelled/labels.jsonl").write_text("\n".join(map(json.dumps, clips)))
    (job.data / "text/blocked.txt").write_text("\n".join(f"multi {i} {k}" for k in "abcde" for i in range(2)) + "\n\n")
    (job.data / "text/running.txt").write_text("\n".join(f"run {i // 5} {i % 5}" for i in range(20)))
    (job.data / "text/running_dev.txt").write_text("held out\n")
    (job.data / "text/single.txt").write_text("  a sound  \n\nanother sound\n")
    (job.data / "audible.txt").write_text("to be heard\n")
    (job.data / "silent.txt").write_text("not to be heard\n")
    return job.data


def test_pictures_of_all_sets_are_read_in_order(data):
    assert [p.path.name for p in corpus.pictures(data)] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "s.avif"]
    (dev,) = corpus.pictures(data, "dev")
    assert (dev.path, dev.captions) == (data / "street/images/3.jpg", tuple(f"picture 3 {k}" for k in "abcde"))
    (square,) = corpus.pictures(data, source="squares")
    assert (square.objects, square.size, square.squeezed) == (("cat", "chair"), (640, 480), True)


def test_a_fold_is_held_out_where_there_are_folds(data):
    clips = [(c.path, c.category, c.held_out) for c in corpus.clips(data) if c.source == "folds"]
    assert clips == [(data / "folds/audio/1-a.ogg", "dog", False), (data / "folds/audio/4-b.ogg", "rain", True)]


def test_elsewhere_whole_recordings_are_held_out(data):
    clips = [c for c in corpus.clips(data) if c.source == "labelled"]
    assert {c.category for c in clips} == {"dog", "gun_shot"}
    sides: dict[str, set[bool]] = {}
    for clip in clips:
        sides.setdefault(clip.path.name.split("-")[0], set()).add(clip.held_out)
    assert all(len(side) == 1 for side in sides.values())
    for category in ("dog", "gun_shot"):  # twenty recordings each
        assert (
            sum(c.held_out for c in clips if c.category == category) == sum(c.category == category for c in clips) / 5
        )


def test_text_is_read_without_empty_lines(data):
    assert corpus.texts(data)["single"].captions == ["a sound", "another sound"]
    assert corpus.texts(data, "dev")["running"].captions == ["held out"]


def test_the_captions_of_a_picture_stay_together(data):
    assert corpus.texts(data)["blocked"].groups == tuple(tuple(f"multi {i} {k}" for k in "abcde") for i in range(2))


@pytest.mark.parametrize("name", ["blocked", "running", "single"])
def test_the_halves_share_no_picture_and_leave_nothing_out(data, name):
    text = corpus.texts(data)[name]
    halves = [text.half(which) for which in (0, 1)]
    assert sorted(halves[0] + halves[1]) == sorted(text.captions)
    if name != "single":
        about = [{caption.split()[1] for caption in half} for half in halves]
        assert not about[0] & about[1]
        assert all(about)


def test_the_tokenizer_reads_everything_but_the_development_split(data):
    texts = corpus.everything(data)
    assert {"picture 2 e", "a cat", "multi 1 a", "run 3 4", "another sound", "to be heard", "not to be heard"} <= set(
        texts
    )
    assert not any(text.startswith("picture 3") or text == "held out" for text in texts)


def test_the_own_list_names_every_set_that_the_counts_count():
    own = corpus.manifest(Path("nowhere"))
    assert {entry["of"] for entry in own["texts"]} == {"image", "audio"}
    assert all(set(entry) >= {"name", "table"} for entry in own["sounds"])


def test_what_is_held_back_becomes_a_folder_for_evaluate(data, tmp_path):
    for clip in corpus.clips(data):
        clip.path.parent.mkdir(exist_ok=True)
        clip.path.write_bytes(b"sound")
    counts = held_out_clips.write(data, tmp_path / "out")
    held_out = [clip for clip in corpus.clips(data) if clip.held_out]
    assert counts == {source: sum(c.source == source for c in held_out) for source in ("folds", "labelled")}
    items = read_dataset(tmp_path / "out", split="labelled")
    assert [(item.id, item.category) for item in items] == [
        (clip.path.name, clip.category) for clip in held_out if clip.source == "labelled"
    ]
    assert all(item.path.read_bytes() == b"sound" and item.references for item in items)


def test_a_folder_without_data_is_told_in_a_sentence(tmp_path, capsys):
    assert held_out_clips.main([str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert "give the data folder" in capsys.readouterr().err

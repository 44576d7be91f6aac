"""The painter shows what codes hold: it learns which colours a code stands for, and where."""

import json
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from captioners.nets.painter import CodePainter, PainterConfig
from captioners.training import Job
from captioners.training.small_pictures import small_pictures

TINY = PainterConfig(codes=4, rows=3, width=16, doublings=2)


def test_codes_become_a_picture_of_their_colours():
    torch.manual_seed(0)
    painter, colours = CodePainter(TINY), torch.rand(4, 3)
    optimizer = torch.optim.Adam(painter.parameters(), 1e-2)
    for _ in range(200):
        codes = torch.randint(4, (16, 9))
        cells = colours[codes].transpose(1, 2).unflatten(2, (3, 3))
        truth = cells.repeat_interleave(4, 2).repeat_interleave(4, 3)
        loss = torch.nn.functional.mse_loss(painter(codes), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    painted = painter(torch.arange(9).remainder(4)[None])
    assert painted.shape == (1, 3, TINY.side, TINY.side) == (1, 3, 12, 12)
    middles = painted[0, :, 1::4, 1::4].flatten(1).T  # a pixel within each cell
    nearest = torch.cdist(middles, colours).argmin(1)
    assert nearest.tolist() == torch.arange(9).remainder(4).tolist()


def test_pictures_are_squeezed_whole_and_read_once(tmp_path):
    folder = tmp_path / "data" / "shapes"
    (folder / "images").mkdir(parents=True)
    halves = np.zeros((20, 40, 3), np.uint8)
    halves[:, 20:] = (200, 100, 0)
    Image.fromarray(halves).save(folder / "images" / "a.png")
    line = {"image": "a.png", "split": "train", "captions": ["two halves"] * 5}
    (folder / "captions.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "data" / "data.toml").write_text('[[pictures]]\nname = "shapes"\n')
    job = Job(tmp_path / "data", tmp_path / "out", tmp_path / "cache", quiet=True)
    found = small_pictures(job, "train", 4)
    assert found.shape == (1, 3, 4, 4)
    assert found[0, :, 0, 0].tolist() == [0, 0, 0] and found[0, :, 3, 3].tolist() == [200, 100, 0]
    (folder / "images" / "a.png").unlink()
    assert torch.equal(small_pictures(job, "train", 4), found)


def test_a_pictures_codes_are_painted_unless_they_are_of_another_size(embedded, picture, sound, monkeypatch):
    painted = embedded.models.painted(picture)
    assert painted.shape == (56, 56, 3) and painted.dtype == np.uint8 and painted.std() > 1
    assert embedded.models.painted(sound) is None
    other = SimpleNamespace(config=SimpleNamespace(codes=7))
    monkeypatch.setattr(embedded.models, "_vq", lambda kind: other)
    assert embedded.models.painted(picture) is None

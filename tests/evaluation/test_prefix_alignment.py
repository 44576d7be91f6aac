"""Prefix and caption: cosines by hand, and the command on our own examples."""

import json

import pytest
import torch

from captioners.evaluation.prefix_alignment import cosines, main
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.resources import EXAMPLES


def test_cosines_are_those_of_centred_rows():
    one = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert cosines(one, 2 * one + 7).tolist() == pytest.approx([1, 1])
    assert cosines(one, -one).tolist() == pytest.approx([-1, -1])


def test_a_captions_mean_is_over_its_own_words():
    net = PrefixDenoiser(PrefixDenoiserConfig(vocab=40, embed=16, dim=32, layers=1)).eval()
    with torch.no_grad():
        one, both = net.caption_means([[3], [3, 5]])
        assert torch.allclose((one + net.caption_means([[5]])[0]) / 2, both, atol=1e-5)


def test_the_command_prints_own_and_others(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    lines = []
    for name, caption in (("cat", "a cat looks at the camera"), ("coffee", "a cup of coffee"), ("dog", "a dog")):
        (tmp_path / "images" / f"{name}.jpg").write_bytes((EXAMPLES / f"{name}.jpg").read_bytes())
        lines.append(json.dumps({"image": f"{name}.jpg", "captions": [caption]}))
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    assert main([str(tmp_path)]) == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()]
    assert rows == ["caption", "---", "own", "another's"]


def test_a_folder_that_is_no_data_set_is_refused(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "is not a data set" in capsys.readouterr().err

"""Substitutes for p(x) against the trained one: the truth is at no distance from itself, every substitute at some."""

import pytest
import torch

from captioners.evaluation.check_command import exit_code
from captioners.evaluation.dataset import read_dataset
from captioners.evaluation.no_input import (
    Setting,
    branches,
    compare,
    looking_at,
    mean_as_read,
    reference_items,
    table,
)
from captioners.lab import Lab


@pytest.fixture
def setting(embedded, draw) -> Setting:
    return Setting(
        Lab(embedded),
        [draw(0), draw(1)],
        ["a dog runs", "two people talk"],
        [draw(i) for i in range(2, 8)],
        (3, 6),
        (4,),
    )


@torch.inference_mode()
def test_the_trained_null_cell_is_no_distance_from_itself_and_every_substitute_is_some(setting):
    first, *others = compare(setting, scales=(2.0,))
    assert first["kl"] == pytest.approx(0, abs=1e-5)
    assert first["scales"][2.0]["same"] == 1
    assert {row["name"] for row in others} >= {
        "zeros",
        "a shuffled picture",
        *(f"mean token of {n}" for n in ("3", "6", "our 14 examples")),
        *(f"mean per position as read of {n}" for n in ("3", "6", "our 14 examples")),
        "mixture of 4",
        "mixture of our 14 examples",
    }
    assert all(row["kl"] > 0 for row in others)
    assert "| zeros | " in table([first, *others])


@torch.inference_mode()
def test_token_by_token_and_all_at_once_are_the_same_also_in_a_mixture(setting):
    for name in ("trained null cell", "mixture of 4"):
        branch = branches(setting, setting.grids(setting.media))[name]
        ids = torch.tensor([[setting.models.start_token("image"), 50, 60]] * 2)
        step = branch.steps()
        alone = torch.stack([step(column) for column in ids.split(1, dim=1)], 1)
        assert torch.allclose(alone, branch.whole(ids), atol=1e-4)
        assert torch.allclose(alone.exp().sum(-1), torch.ones(2, 3), atol=1e-4)


@torch.inference_mode()
def test_a_mean_as_read_of_one_picture_is_that_picture_and_of_its_cells_alike_a_single_one(setting):
    decoder, grid = setting.models.caption_decoder(), setting.grids(setting.others[:1])
    ids = torch.tensor([[setting.models.start_token("image"), 50, 60]] * 2)
    read = looking_at(decoder, grid)
    seen = decoder(ids[:1], read)[0]
    assert torch.allclose(decoder(ids, mean_as_read(read, 2, cells=False))[0], seen.expand(2, -1, -1), atol=1e-4)
    one = decoder(ids, mean_as_read(read, 2, cells=True))[0]
    assert not torch.allclose(one, seen.expand(2, -1, -1), atol=1e-2)
    keys = mean_as_read(read, 2, cells=True).keys_values[0][0]
    assert torch.allclose(keys[1], read.keys_values[0][0][0, :, 1:].mean(1, keepdim=True), atol=1e-5)


def test_no_picture_that_is_measured_is_a_reference_and_too_few_are_told(tmp_path, capsys):
    (tmp_path / "captions.jsonl").write_text("".join(f'{{"image": "{i}.png", "split": "dev"}}\n' for i in range(6)))
    measured = read_dataset(tmp_path, "dev", 2)
    assert [item.id for item in reference_items(tmp_path, "dev", measured, 3)] == ["2.png", "3.png", "4.png"]
    assert exit_code(lambda: reference_items(tmp_path, "dev", measured, 5)) == 2
    assert "5 reference pictures are asked for and split 'dev' has 4 beside the measured" in capsys.readouterr().err

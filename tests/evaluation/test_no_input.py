"""Substitutes for p(x) against the trained one: the truth is at no distance from itself, every substitute at some."""

import pytest
import torch

from captioners.evaluation.no_input import Setting, branches, compare, table
from captioners.lab import Lab


@pytest.fixture
def setting(embedded, draw) -> Setting:
    return Setting(
        Lab(embedded), [draw(0), draw(1)], ["a dog runs", "two people talk"], [draw(i) for i in range(2, 20)]
    )


@torch.inference_mode()
def test_the_trained_null_cell_is_no_distance_from_itself_and_every_substitute_is_some(setting):
    first, *others = compare(setting, scales=(2.0,))
    assert first["kl"] == pytest.approx(0, abs=1e-5)
    assert first["scales"][2.0]["same"] == 1
    assert {row["name"] for row in others} >= {
        "zeros",
        "mean token",
        "mean per position",
        "a shuffled picture",
        "mixture of 4",
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

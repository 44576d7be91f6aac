"""Parts on disk: what is written comes back, and what does not fit is refused with a sentence; and what is shipped."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from captioners.lab import Lab
from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.profiles import embedded
from captioners.profiles.embedded import PartLoader
from captioners.profiles.store import (
    MAX_BYTES,
    MissingPart,
    file_hash,
    find_part,
    load_into,
    part_files,
    part_hash,
    read_config,
    save_part,
)
from captioners.resources import ASSETS, WEIGHTS
from captioners.types import CaptionLabError


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_a_part_comes_back_rounded_to_half_precision_with_its_configuration(tmp_path):
    torch.manual_seed(0)
    written = small()
    written(torch.randn(8, 3))  # moves the batch statistics
    path = save_part(tmp_path / "new", "part", written, {"dim": 4, "name": "π"})
    assert (path, read_config(path)) == (tmp_path / "new" / "part.safetensors", {"dim": 4, "name": "π"})
    read = load_into(small(), path)
    for name, value in read.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert value.dtype == torch.float32
            assert torch.equal(value, written.state_dict()[name].half().float())
    assert list(tmp_path.rglob("*.partial")) == []


def test_a_part_over_ten_megabytes_is_split_into_files_and_comes_back(tmp_path):
    torch.manual_seed(0)
    big = nn.Sequential(*(nn.Linear(1500, 1000) for _ in range(5)))  # 15 MB
    path = save_part(tmp_path, "big", big, {"dim": 1})
    assert [p.name for p in part_files(path)] == ["big.safetensors", "big-2.safetensors"]
    assert all(p.stat().st_size <= MAX_BYTES for p in part_files(path))
    read = load_into(nn.Sequential(*(nn.Linear(1500, 1000) for _ in range(5))), path)
    assert all(torch.equal(v.half(), read.state_dict()[k].half()) for k, v in big.state_dict().items())
    before = part_hash("big", tmp_path)
    part_files(path)[1].write_bytes(part_files(path)[1].read_bytes()[:-1] + b"x")
    assert part_hash("big", tmp_path) != before


def test_a_weight_too_large_for_half_precision_is_refused(tmp_path):
    net = small()
    nn.init.constant_(net[0].weight, 1e6)
    with pytest.raises(ValueError, match="does not fit into fp16"):
        save_part(tmp_path, "part", net, {})


def test_a_missing_part_says_how_to_get_it(tmp_path):
    with pytest.raises(
        MissingPart, match=r"There is no cfg\.safetensors in .*: run `python -m captioners train cfg`\."
    ):
        find_part("cfg", tmp_path)


def test_a_profile_without_a_tokenizer_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "WEIGHTS", tmp_path)
    with pytest.raises(MissingPart, match="run `python -m captioners train tokenizer`"):
        embedded.profile("cpu")


def test_the_first_folder_that_has_a_part_wins(tmp_path):
    first, second = (save_part(tmp_path / name, "part", small(), {}) for name in ("a", "b"))
    assert find_part("part", tmp_path / "a", tmp_path / "b") == first
    first.unlink()
    assert find_part("part", tmp_path / "a", tmp_path / "b") == second


@pytest.mark.parametrize(
    ("net", "wrong"),
    [
        (nn.Sequential(nn.Linear(3, 4)), r"1\.bias, 1\.running_mean, 1\.running_var"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1, bias=False)), r"2\.weight$"),
        (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), r"0\.weight$"),
    ],
    ids=["unexpected", "missing", "of another shape"],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, net, wrong):
    path = save_part(tmp_path, "part", small(), {})
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=rf"part\.safetensors does not fit this model: .* are {wrong}"):
        load_into(net, path)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_a_shelf_reads_a_part_once_and_freezes_it(tmp_path):
    save_part(tmp_path, "part", small(), {"out": 4})
    loader, built = PartLoader("cpu", tmp_path), []

    def build(config):
        built.append(config)
        return small()

    net = loader.get("part", build)
    assert loader.get("part", build) is net
    assert built == [{"out": 4}]
    assert not net.training
    assert not any(p.requires_grad for p in net.parameters())
    assert loader.hash("part") == file_hash(tmp_path / "part.safetensors")


# --------------------------------------------------------------------------------------------- weights of one's own


def retrained(folder: Path, scale: float) -> Path:
    """Method 1's decoder with other weights."""
    path = WEIGHTS / "cfg.safetensors"
    config = read_config(path)
    decoder = load_into(CaptionDecoder(CaptionerConfig(**config)), path)
    with torch.no_grad():
        decoder.null.mul_(scale)
    save_part(folder, "cfg", decoder, config)
    return folder


def test_own_weights_are_played_with_and_judges_stay(tmp_path, picture):
    first, last = retrained(tmp_path / "first", 2.0), retrained(tmp_path / "last", 3.0)
    lab = Lab("embedded", "cpu", checkpoints=[str(first), str(last)])
    weights = lab.results([picture], "cfg")[0].weights
    assert weights.pop("cfg") == file_hash(last / "cfg.safetensors")
    assert weights == {part: file_hash(WEIGHTS / f"{part}.safetensors") for part in weights}
    assert lab.profile.judges.loader.folders == (WEIGHTS,)


def test_a_folder_without_weights_or_with_damaged_ones_is_told(tmp_path, picture):
    with pytest.raises(CaptionLabError, match="holds no weights"):
        Lab("embedded", "cpu", checkpoints=[str(tmp_path / "nowhere")])
    (tmp_path / "cfg.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(CaptionLabError, match="damaged or not one of our parts"):
        Lab("embedded", "cpu", checkpoints=[str(tmp_path)]).results([picture], "cfg")


# ------------------------------------------------------------------------------------------------- what is shipped

SHIPPED = sorted(path for path in WEIGHTS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_every_shipped_file_is_plain_data_of_at_most_ten_megabytes(path: Path):
    assert path.stat().st_size <= MAX_BYTES
    assert path.suffix in (".safetensors", ".json")
    if path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))
    else:
        assert path.parent.name == "shards" or isinstance(read_config(path), dict)
        with safe_open(path, framework="pt") as file:
            kinds = {str(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118 (not a dict)
        assert kinds <= {"F16", "I64", "I32", "U8", "BOOL"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_every_shipped_file_is_in_the_model_card(path: Path):
    part = path.name.split(".")[0] if path.parent == WEIGHTS else path.stem.rpartition("-")[0]  # a shard's whole
    assert f"`{part}`" in (ASSETS / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert {f"{part}.safetensors", f"{part}.json"} & {p.name for p in SHIPPED}  # no metrics without their part

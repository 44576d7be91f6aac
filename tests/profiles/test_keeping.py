"""What stands for no input is made when a captioner is first loaded, kept on disk, and made again of other pictures."""

import pytest
import torch
from PIL import Image
from tiny_captioners import save_blip
from tiny_hub import COCA, save_open_clip, tiny_coca

from captioners.profiles.hub import keeping
from captioners.profiles.hub.families import load_captioner
from captioners.profiles.hub.keeping import kept
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import Blank, Source


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPTION_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path, draw):
    (tmp_path / "photos").mkdir()
    for seed in range(3):
        Image.fromarray(draw(seed).data).save(tmp_path / "photos" / f"{seed}.png")
    return tmp_path / "photos"


@pytest.fixture(params=["coca", "blip"])
def load(request, tmp_path, photos):
    """Loads the captioner as a new process would."""
    folder = tmp_path / request.param
    if request.param == "coca":
        save_open_clip(folder, tiny_coca(), COCA)
    else:
        save_blip(folder)

    def captioner():
        source = Source(str(folder), family="any", blank=Blank("mean", folder=str(photos)))
        loader = ModelLoader({"captioner": source}, "cpu", lambda words: None)
        return loader.get("captioner", lambda path, source: load_captioner(path, source, loader))

    return captioner


def test_the_mean_is_made_once_and_again_where_the_pictures_are_others(load, cache, photos, draw, monkeypatch):
    first = load()
    assert first.no_input.words == "the mean of 3 pictures"
    assert first.no_input.null.shape == (first.no_input.mean.shape[-1],)  # one cell
    assert len(list(cache.glob("no-input-*.safetensors"))) == 1
    with monkeypatch.context() as patch:
        patch.setattr("captioners.profiles.hub.blank.read_grids", lambda *_: pytest.fail("no picture is read again"))
        assert torch.equal(load().no_input.null, first.no_input.null)
    Image.fromarray(draw(9).data).save(photos / "9.png")
    assert not torch.equal(load().no_input.null, first.no_input.null)
    assert len(list(cache.iterdir())) == 2  # and nothing half written


@torch.no_grad()
def test_without_a_picture_a_captioner_sees_the_mean_of_what_it_makes_of_the_references(load, cache, photos, draw):
    model = load()
    condition = model.decoder.condition({"image": model.grids([draw(i) for i in range(3)])}, torch.arange(3))
    for pair in condition.keys_values:
        for cells in pair:
            assert torch.allclose(cells[0, :, 0], cells[:, :, condition.nulls :].mean((0, 2)), atol=1e-4)


def test_a_damaged_file_and_a_folder_that_cannot_be_written_cost_time_alone(cache, monkeypatch):
    def make() -> torch.Tensor:
        return torch.arange(3.0)

    assert torch.equal(kept("x", ("a",), make), make())
    (file,) = cache.iterdir()
    file.write_bytes(b"half")
    assert torch.equal(kept("x", ("a",), make), make())
    assert torch.equal(kept("x", ("a",), lambda: pytest.fail("it is whole again")), make())
    (cache / "a file").write_text("")
    monkeypatch.setenv("CAPTION_LAB_CACHE", str(cache / "a file"))
    assert torch.equal(kept("x", ("a",), make), make())

    def homeless() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(keeping, "cache_folder", homeless)
    assert torch.equal(kept("x", ("a",), make), make())

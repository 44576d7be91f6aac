"""Codes of pixels in training: image-vq makes them, method 3 learns on them, and nobody plays with them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from captioners.lab import Lab
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig
from captioners.profiles.store import read_config, save_part
from captioners.training import Job, mask_denoiser, painter, vq
from captioners.training.sound_pairs import SoundPairs
from captioners.types import CaptionLabError

CODES = (("pixels", "16"), ("codes", "8"), ("dim", "4"), ("width", "4"), ("batch", "4"))


@pytest.fixture
def job(job) -> Job:
    """A data folder of small pictures, each of two colours."""
    folder, noise = job.data / "shapes", np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    lines = []
    for i in range(16):
        halves = np.repeat(noise.integers(0, 256, (2, 1, 3), np.uint8), 12, 0).repeat(24, 1)
        Image.fromarray(halves).save(folder / "images" / f"{i}.png")
        split = "train" if i % 4 else "dev"
        lines.append(json.dumps({"image": f"{i}.png", "split": split, "captions": ["a dog on the grass"] * 5}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    (job.data / "data.toml").write_text(
        '[[pictures]]\nname = "shapes"\n\n[[texts]]\nname = "multi30k"\nfiles = ["text.txt"]\nof = "image"\n'
    )
    (job.data / "text.txt").write_text("a cat sits on a mat\na car in the street\n" * 4)
    return job


@pytest.fixture
def with_codes(job) -> Job:
    """The job with an image-vq over pixels in its folder."""
    vq.train("image-vq", replace(job, epochs=1, settings=CODES))
    return job


@pytest.fixture
def sounds(monkeypatch) -> None:
    grids = torch.randn(4, 20, 512).half()
    pairs = SoundPairs(grids, [("dog",)] * 4, grids, [("dog",)] * 4, ["esc50"] * 4, {"dog": ["a dog barks"]})
    monkeypatch.setattr(mask_denoiser, "sound_pairs", lambda job: pairs)


def test_the_record_is_that_of_codes_of_features(job):
    record = vq.train("image-vq", replace(job, epochs=2, settings=CODES))
    assert record["variance_lost"] > 0 and 0 < record["codes_used"] <= 1 <= record["code_perplexity"] <= 8
    config = read_config(job.out / "image-vq.safetensors")
    assert (config["pixels"], config["rows"], config["codes"]) == (16, 2, 8)
    assert config["dead"] == vq.PIXELS.dead > vq.CONFIGS["image-vq"].dead


def test_pictures_have_one_view_of_codes(with_codes):
    net = vq.load_vq(with_codes, "image-vq")
    codes = vq.picture_codes(with_codes, net)
    assert {split: tuple(c.shape) for split, c in codes.items()} == {"train": (1, 12, 4), "dev": (1, 4, 4)}
    assert torch.equal(codes["dev"][0], vq.media_codes(net, vq.small_pictures(with_codes, "dev", 16)))


def test_method_3_learns_on_codes_of_pixels(with_codes, sounds):
    asked = (("batch", "4"), ("sounds", "4"), ("texts", "4"))
    record = mask_denoiser.train("mc-diffusion", replace(with_codes, epochs=0.5, settings=asked))
    assert record["cider"] >= 0 and np.isfinite(record["history"][0]["loss"])
    config = read_config(with_codes.out / "mc-diffusion.safetensors")
    assert (config["image_pixels"], config["image_codes"]) == (16, 8)
    assert (config["image_cells"], config["image_rows"]) == (4, 2)
    assert (config["audio_cells"], config["audio_rows"]) == (20, 2)


def test_codes_that_are_alike_start_alike_and_as_large_as_the_decoders_own(job):
    decoder = mask_denoiser.load_decoder(job)
    net = vq.PixelVQAutoencoder(vq.VQConfig(codes=50, pixels=16, rows=2))
    net.codebook[1] = net.codebook[0] + 0.01
    tables = mask_denoiser.code_embeddings({"image": net, "audio": vq.load_vq(job, "audio-vq")}, decoder)
    distance = torch.cdist(tables["image"], tables["image"])
    assert distance[0, 1] < 0.1 * distance[0, 2:].min()
    own = mask_denoiser.code_embeddings({"image": vq.load_vq(job, "image-vq")}, decoder)["image"]
    assert 0.5 < tables["image"].std() / own.std() < 2


@pytest.mark.parametrize(("part", "pixels", "says"), [("image-vq", "20", "multiple of 8"), ("audio-vq", "16", "Only")])
def test_a_size_that_is_not_possible_is_refused(job, part, pixels, says):
    with pytest.raises(CaptionLabError, match=says):
        vq.train(part, replace(job, settings=(("pixels", pixels),)))


def test_the_painter_is_not_taught_codes_of_pixels(with_codes):
    with pytest.raises(CaptionLabError, match="train image-vq without `--set pixels`"):
        painter.train("image-painter", with_codes)


def test_nobody_plays_with_codes_of_pixels(with_codes, tmp_path, picture):
    with pytest.raises(CaptionLabError, match=r"image-vq was trained on .* pixels, and .* without `--set pixels`"):
        Lab("embedded", "cpu", checkpoints=[str(with_codes.out)]).results([picture], "mc-diffusion")
    small = MaskDenoiserConfig(vocab=40, dim=16, heads=2, image_pixels=16)
    save_part(tmp_path / "other", "mc-diffusion", MaskDenoiser(small), {"image_pixels": 16})
    with pytest.raises(CaptionLabError, match="mc-diffusion was trained on codes of pixels"):
        Lab("embedded", "cpu", checkpoints=[str(tmp_path / "other")]).results([picture], "mc-diffusion")

"""One step of every `train PART --profile hub` on tiny models, and its output loaded with --checkpoint."""

import json
import math
from dataclasses import asdict, replace

import fakes
import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from pretend_gpu import pretend_gpu
from tiny_hub import load_half, save_all

from captioners import registry
from captioners.cli import main
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.profiles.base import ProfileError, load_profile
from captioners.profiles.hub.roles import choose
from captioners.profiles.store import save_part
from captioners.training.hub import captioner, classifier, mask_denoiser, prefix_denoiser

PARTS = ("cfg", "audibility", "mc-diffusion", "prefix-diffusion")
CAPTIONS = [
    "a dog runs through the grass",
    "two men are playing football",
    "a woman rides a skateboard",
    "a boat on the water",
    "a black dog plays",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("hub-training") / "models")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Five pictures with captions, and a few sentences for the classifier."""
    folder = tmp_path_factory.mktemp("hub-data")
    (folder / "images").mkdir()
    lines = []
    for i, caption in enumerate(CAPTIONS):
        fakes.picture(folder / "images" / f"{i}.png", i)
        lines.append(
            json.dumps(
                {"image": f"{i}.png", "split": "dev" if i >= 3 else "train", "captions": [caption, f"{caption} today"]}
            )
        )
    (folder / "captions.jsonl").write_text("\n".join(lines))
    (folder / "audibility").mkdir()
    (folder / "audibility/audible.txt").write_text("\n".join(f"a car horn sounds {i}" for i in range(12)))
    (folder / "audibility/not_audible.txt").write_text("\n".join(f"a dog in the grass {i}" for i in range(12)))
    return folder


@pytest.fixture
def small(monkeypatch):
    """Small batches and networks."""
    for module, size in ((captioner, 2), (classifier, 8), (mask_denoiser, 2), (prefix_denoiser, 2)):
        monkeypatch.setattr(module, "RECIPE", replace(module.RECIPE, batch=size))
    monkeypatch.setattr(captioner, "RECIPE", replace(captioner.RECIPE, lr=1e-2))
    monkeypatch.setattr(mask_denoiser, "SIZES", {"dim": 16, "text_layers": 0, "cross_layers": 2, "heads": 2})
    monkeypatch.setattr(
        prefix_denoiser, "SIZES", prefix_denoiser.SIZES | {"embed": 8, "dim": 16, "layers": 2, "heads": 2, "hidden": 16}
    )


def train(part, data, models, out, capsys, device="cpu") -> dict:
    options = ["--profile", "hub", "--models", str(models), "--device", device, "--epochs", "1"]
    code = main(["train", part, "--data", str(data), "--out", str(out), "--cache", str(out / "cache"), *options])
    assert code == 0, capsys.readouterr().err
    return json.loads((out / f"{part}.metrics.json").read_text())


def caption(method: str, models, checkpoint, media):
    """In whole precision, after one in half that is only looked at."""
    for profile in (load_half(models, checkpoint), load_profile("hub", "cpu", str(models), (str(checkpoint),))):
        captioner = registry.load(method, profile)
        brief = {name: 5 for name in ("max_tokens", "num_steps") if captioner.spec.listens_to(name)}
        result = captioner.caption(media, captioner.spec.settings(**brief))
        assert result.trace
        assert all(math.isfinite(entry.cond) for entry in result.trace)
    return result


def test_coca_learns_to_do_without_its_picture(data, models, tmp_path, small, capsys, picture):
    report = train("cfg", data, models, tmp_path, capsys)
    assert {"cider", "first_token_kl", "history", "parameters"} <= set(report)
    before = registry.load("cfg", load_profile("hub", "cpu", str(models)))
    after = registry.load("cfg", load_profile("hub", "cpu", str(models), (str(tmp_path),)))
    assert before.models.notes
    assert after.models.notes == ()  # it was trained without its picture now and then
    mine, theirs = after.models.caption_decoder(), before.models.caption_decoder()
    assert not torch.equal(mine.null, theirs.null)
    assert not torch.equal(mine.multimodal.text_projection, theirs.multimodal.text_projection)
    assert torch.equal(after.models.model.net.visual.proj, before.models.model.net.visual.proj)
    assert set(caption("cfg", models, tmp_path, picture).weights) == {"captioner"}


def test_distilbert_becomes_a_classifier(data, models, tmp_path, small, capsys):
    assert 0 <= train("audibility", data, models, tmp_path, capsys)["accuracy"] <= 1
    method_models = load_profile("hub", "cpu", str(models), (str(tmp_path / "audibility"),)).models_for("classifier")
    assert str(tmp_path) in method_models.loader.sources["audibility"].id
    said = method_models.classifier("audio").probability(["a car horn sounds", "a dog"])
    assert said.shape == (2,)
    assert ((said > 0) & (said < 1)).all()


def test_the_mask_denoiser_learns_on_a_pretrained_vq_vae(data, models, tmp_path, small, capsys, picture, sound):
    assert "cider" in train("mc-diffusion", data, models, tmp_path, capsys)
    result = caption("mc-diffusion", models, tmp_path / "mc-diffusion.safetensors", picture)
    assert not any("embedded weights" in note for note in result.notes)
    assert set(result.weights) == {"mc-diffusion", "codes"}
    assert result.details["masked_cells"]["shape"] == [16, 16]
    assert any("describes pictures only" in note for note in caption("mc-diffusion", models, tmp_path, sound).notes)


def test_the_prefix_denoiser_learns_on_the_rankers_vectors(data, models, tmp_path, small, capsys, picture, sound):
    assert train("prefix-diffusion", data, models, tmp_path, capsys)["dev_loss"] > 0
    profile = load_profile("hub", "cpu", str(models), (str(tmp_path),))
    method_models = profile.models_for("prefix-diffusion")
    (features,) = method_models.encode([picture])
    assert torch.allclose(features.pooled, method_models.ranker("image").embed_media([picture])[0])
    net = method_models.prefix_denoiser()
    prefix = net.prefix(
        {"image": features.pooled[None, None]}, torch.tensor([0]), torch.tensor([method_models.start_token("image")])
    )
    assert net(torch.randn(1, 6, 8), torch.tensor([0.5]), prefix, torch.tensor([4])).shape == (
        1,
        6,
        len(method_models.tokenizer),
    )
    assert set(caption("prefix-diffusion", models, tmp_path, picture).weights) == {"prefix-diffusion", "image-ranker"}
    assert any("describes pictures only" in note for note in caption("prefix-diffusion", models, tmp_path, sound).notes)


def test_a_prefix_of_regions_is_not_for_one_vector(data, models, tmp_path, small, capsys):
    options = ["--profile", "hub", "--models", str(models), "--device", "cpu", "--set", "regions=5"]
    assert main(["train", "prefix-diffusion", "--data", str(data), "--out", str(tmp_path), *options]) == 2
    assert "CLIP gives one vector of a picture" in capsys.readouterr().err
    config = PrefixDenoiserConfig(vocab=40, embed=8, dim=16, layers=1, heads=2, hidden=16, regions=5)
    save_part(tmp_path, "prefix-diffusion", PrefixDenoiser(config), asdict(config))
    method_models = load_profile("hub", "cpu", str(models), (str(tmp_path),)).models_for("prefix-diffusion")
    with pytest.raises(ProfileError, match="its prefix is made of 5 regions, and CLIP gives one vector"):
        method_models.prefix_denoiser()


@pytest.mark.parametrize("part", PARTS)
def test_every_part_learns_in_mixed_precision(part, data, models, tmp_path, small, capsys):
    """What `accelerate launch --mixed_precision fp16` does on a GPU."""
    with torch.autocast("cpu", torch.float16):
        report = train(part, data, models, tmp_path, capsys)
    assert all(math.isfinite(epoch["loss"]) for epoch in report["history"])


@pytest.fixture
def accelerated(monkeypatch):
    """accelerate believes in a GPU, for one test."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_learns_on_a_gpu(part, data, models, tmp_path, small, capsys, accelerated):
    with pretend_gpu():
        report = train(part, data, models, tmp_path, capsys, device="auto")
        assert PartialState().device.type == "cuda"
    assert all(math.isfinite(epoch["loss"]) for epoch in report["history"])


def test_the_papers_sizes_are_what_is_trained():
    from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig

    assert (mask_denoiser.SIZES["dim"], mask_denoiser.SIZES["cross_layers"]) == (512, 18)
    with torch.device("meta"):
        net = MaskDenoiser(MaskDenoiserConfig(**mask_denoiser.SIZES))
    assert 70e6 < sum(p.numel() for p in net.parameters()) < 130e6


def test_a_second_run_goes_on_and_ends_with_the_same_weights(data, models, tmp_path, small, capsys):
    first = train("audibility", data, models, tmp_path, capsys)
    weights = (tmp_path / "audibility/model.safetensors").read_bytes()
    (tmp_path / "audibility/model.safetensors").unlink()
    assert train("audibility", data, models, tmp_path, capsys)["history"] == first["history"]
    assert (tmp_path / "audibility/model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(("name", "says"), [("nowhere", "There is no checkpoint"), ("empty", "holds no checkpoint")])
def test_a_checkpoint_that_is_none_is_told_in_a_sentence(name, says, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProfileError, match=says):
        choose(None, (str(tmp_path / name),))


def test_a_part_that_the_hub_profile_does_not_train_is_named(data, tmp_path, capsys):
    assert main(["train", "tokenizer", "--profile", "hub", "--data", str(data), "--out", str(tmp_path)]) == 2
    assert "choose from cfg, audibility" in capsys.readouterr().err

"""The hub profile on tiny models of the very same classes: the methods on it, and its matchers."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from captioners import registry
from captioners.lab import Lab
from captioners.media import load_media
from captioners.nets.encoders import square_pixels
from captioners.profiles.hub import matchers
from captioners.profiles.hub.codes import PictureCodes
from captioners.profiles.hub.matchers import SkipWeightInit, load_open_clip
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.profiles.hub.roles import ROLES, Source
from captioners.resources import EXAMPLES
from captioners.text import EOS

METHODS = [spec.id for spec in registry.available()]
BRIEF = {"max_tokens": 5, "num_steps": 2, "num_candidates": 2, "top_k": 8}


@pytest.mark.parametrize("precision", ["hub", "half_hub"])
@pytest.mark.parametrize("kind", ["picture", "sound"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_a_caption_a_trace_and_scores(name, kind, precision, request):
    media, lab = request.getfixturevalue(kind), Lab(request.getfixturevalue(precision))
    spec = registry.find(name).spec
    settings = spec.settings(**{c.name: max(BRIEF[c.name], c.low) for c in spec.controls if c.name in BRIEF})
    result = lab.caption(media, name, settings)
    assert result.profile == "hub"
    assert len(result.candidates) == 2
    assert result.trace
    assert all(math.isfinite(t.cond) and math.isfinite(t.uncond) for t in result.trace)
    assert {"clipscore", "perplexity", "words"} <= set(result.scores)
    assert ("CLIP image-judge" if kind == "picture" else "CLAP audio-judge") in result.scores["clipscore"].encoder
    assert "GPT-2 fluency-judge" in result.scores["perplexity"].encoder
    small = name in ("mc-diffusion", "prefix-diffusion") or (name, kind) == ("cfg", "sound")
    assert any("embedded weights are used" in note for note in result.notes) == small


def test_half_precision_scores_are_those_of_whole_precision(hub, half_hub, picture, sound):
    for kind, media in (("image", picture), ("audio", sound)):
        whole, half = (p.judges.matcher(kind) for p in (hub, half_hub))
        captions = ["a dog in the grass", "rain on a roof", "two people talk"]
        expected = whole.embed_media([media]) @ whole.embed_text(captions).T
        assert torch.allclose(half.embed_media([media]) @ half.embed_text(captions).T, expected, atol=0.01)


def test_codes_are_the_same_in_half_precision(hub, half_hub, picture):
    whole, half = (PictureCodes(p.models.loader)([picture])[0] for p in (hub, half_hub))
    assert torch.equal(whole, half)


def test_codes_are_painted_as_the_vq_model_itself_gives_a_picture_back(hub, picture):
    codes = PictureCodes(hub.models.loader)
    pixels = square_pixels(torch.from_numpy(picture.data), codes._pixels)[None]
    with torch.no_grad():
        expected = codes.net(pixels * 2 - 1).sample[0].permute(1, 2, 0) / 2 + 0.5
    painted = torch.from_numpy(codes.painted(picture)).float() / 255
    torch.testing.assert_close(painted, expected.clamp(0, 1), rtol=0, atol=0.003)


def test_open_clip_weights_are_read_whole_and_never_drawn(models):
    folder = models.parent / "captioner"
    model, _ = load_open_clip(folder, Source(str(folder), family="open_clip"), ModelLoader({}, "cpu"))
    saved = load_file(folder / "open_clip_model.safetensors")
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    state = torch.random.get_rng_state()
    with SkipWeightInit():
        torch.nn.Linear(4, 4), torch.nn.MultiheadAttention(4, 2), torch.nn.Embedding(4, 4), torch.nn.Conv2d(1, 1, 1)
    assert torch.equal(torch.random.get_rng_state(), state)  # drawing would have moved it


def test_a_method_without_a_checkpoint_says_that_it_plays_with_the_embedded_weights(hub):
    for name in ("mc-diffusion", "prefix-diffusion"):
        (note,) = hub.models_for(name).notes
        assert "embedded weights" in note
        assert f"train {name} --profile hub" in note


def test_batch_stream_and_single_rows_of_coca_agree(coca, draw):
    media = [draw(i) for i in range(3)]
    settings = [coca.spec.settings(max_tokens=5, guidance_scale=g, num_candidates=2) for g in (1, 2, 3)]
    batch = coca.caption_batch(media, settings)
    assert [r.caption for r in batch] == [coca.caption(m, s).caption for m, s in zip(media, settings, strict=True)]
    *_, last = coca.stream(media[1], settings[1])
    assert last.result.caption == batch[1].caption
    assert len({r.caption for r in batch}) > 1


@torch.no_grad()
def test_guided_coca_is_the_papers_formula_on_open_clips_own_logits(coca, picture):
    """Greedy tokens of γ = 2, recomputed with open_clip's forward on the picture and on the mean of our examples, taken
    behind the norm of every layer.
    """
    result = coca.caption(picture, coca.spec.settings(max_tokens=5, guidance_scale=2))
    model, grid = coca.models.model.net, coca.models.encode([picture])[0].grid[None]
    examples = coca.models.model.grids([load_media(file, "image") for file in sorted(EXAMPLES.glob("*.jpg"))])

    def mean_of_examples(norm, args, normalised):
        each = torch.layer_norm(examples, examples.shape[-1:], norm.weight, norm.bias, norm.eps)
        return each.mean((0, 1)).expand_as(normalised)

    def next_token(instead: bool) -> torch.Tensor:
        norms = [block.ln_1_kv for block in model.text_decoder.cross_attn] if instead else []
        hooks = [norm.register_forward_hook(mean_of_examples) for norm in norms]
        logits = model(None, torch.tensor([ids]), image_latent=grid[:, 0], image_embs=grid, output_labels=False)
        for hook in hooks:
            hook.remove()
        return logits["logits"][0, -1].log_softmax(-1)

    ids = [coca.models.tokenizer.bos]
    for entry in result.trace:
        cond, uncond = next_token(False), next_token(True)
        guided = 2 * cond - uncond
        guided[[0, coca.models.tokenizer.bos]] = -torch.inf
        if len(ids) == 1:
            guided[coca.models.tokenizer.eos] = -torch.inf
        best = int(guided.argmax())
        assert coca.models.tokenizer.token_id(entry.token) == best
        assert entry.cond == pytest.approx(cond[best].item(), abs=1e-3)
        assert entry.uncond == pytest.approx(uncond[best].item(), abs=1e-3)
        ids.append(best)


def test_a_caption_can_be_forked_at_any_of_its_own_tokens(coca, picture):
    settings = coca.spec.settings(max_tokens=6)
    result = coca.caption(picture, settings)
    again = coca.caption(
        picture, settings.replace(forced={t.position: t.token for t in result.trace if t.token != EOS})
    )
    assert [t.token for t in again.trace] == [t.token for t in result.trace]


def test_what_stays_in_full_precision_is_not_said_to_be_halved():
    assert "half of that on a GPU" in ROLES["captioner"][0].size("captioner")
    assert "half" not in ROLES["language-model"][0].size("language-model")


def test_clap_hears_what_lies_above_eight_kilohertz(hub):
    """A high tone that `data` has no room for: with it the sound has another vector than without."""
    time = np.arange(48_000) / 48_000
    low, high = (np.sin(2 * np.pi * f * time).astype(np.float32) / 2 for f in (440, 12_000))
    heard = load_media((48_000, low + high))
    deaf = dataclasses.replace(heard, band=None)
    judge = hub.judges.matcher("audio")
    assert torch.allclose(judge._sound(deaf), judge._sound(dataclasses.replace(heard, band=(deaf.data, deaf.rate))))
    assert not torch.allclose(judge._sound(heard), judge._sound(deaf), atol=1e-3)


def test_a_rankers_temperature_is_of_its_own_scale_and_a_judge_shows_none(hub, monkeypatch):
    ranker = hub.models_for("classifier").ranker("audio")
    monkeypatch.delitem(ranker.__dict__, "calibration", raising=False)  # another test may have asked for it
    captions = dict(zip(matchers.HEARD.values(), torch.eye(6), strict=True))
    monkeypatch.setattr(ranker, "embed_text", lambda texts: torch.stack([captions[t] for t in texts]))
    monkeypatch.setattr(ranker, "embed_media", lambda media: 0.4 * torch.eye(6) + 0.1)
    monkeypatch.delitem(vars(ranker), "calibration", raising=False)  # an earlier test may have asked for it
    assert (ranker.calibration.random, ranker.calibration.human) == pytest.approx((0.25, 1.25))
    assert hub.judges.matcher("audio").calibration is None
    del ranker.__dict__["calibration"]
    hub.models_for("classifier").load()  # as before the launch on a ZeroGPU Space
    assert "calibration" in ranker.__dict__
    del ranker.__dict__["calibration"]

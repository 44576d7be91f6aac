"""How method 4 goes from noise to words: every sampler against a plain loop, and what the network is shown of noise."""

import pytest
import torch
from small_prefix_diffusion import plain_loop, settings, small, texts

from captioners.methods.prefix_diffusion import PrefixDiffusion
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.nets.schedules import SCHEDULES, alpha_bars, betas
from captioners.types import SettingsError


@pytest.fixture(scope="module")
def method(embedded) -> PrefixDiffusion:
    return small(embedded.models.tokenizer, regions=1)


@pytest.fixture(params=["picture", "sound"])
def media(request):
    return request.getfixturevalue(request.param)


SAMPLED = [
    {"order": "together"},
    {"order": "together", "clamp": "on"},
    {"order": "together", "eta": 0.5},
    {"order": "paper"},
]


@pytest.mark.parametrize("scale", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("schedule", ["square", "truncated-linear"])  # of the latter's steps, half are blind
def test_a_caption_is_what_the_plain_loop_says(method, media, scale, schedule, monkeypatch):
    monkeypatch.setattr("captioners.methods.prefix_diffusion.CERTAIN", 2.0)
    base = settings(method, num_candidates=1, guidance_scale=scale, length=7, schedule=schedule, num_steps=10)
    captions = {}
    for sampled in SAMPLED:
        values = base.replace(**sampled)
        captions[str(sampled)] = method.caption(media, values).caption
        assert captions[str(sampled)] == plain_loop(method, media, values), sampled
    assert len({*captions.values()}) > 1  # it matters how one samples


@pytest.mark.parametrize(
    ("temperature", "said"),
    [(1, "as the paper's published code does"), (0.5, "noise of 0.5 of its strength; temperature = 1 is as published")],
)
def test_the_paper_s_sampler_is_clamp_and_ancestral_noise(method, media, temperature, said):
    common = {"temperature": temperature, "length": 6}
    paper = method.caption(media, settings(method, order="paper", **common))
    by_hand = method.caption(media, settings(method, order="together", clamp="on", eta=1, **common))
    assert paper.candidates == by_hand.candidates
    assert paper.notes == by_hand.notes
    assert said in paper.notes[-1]


def test_less_noise_makes_candidates_more_alike(method, media):
    """In every order."""
    for order in ("confidence", "together", "paper"):
        cold, warm = (
            method.caption(media, settings(method, order=order, temperature=t, length=6, num_candidates=8))
            for t in (0.01, 2)
        )
        assert len(texts(cold)) < len(texts(warm))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"order": "together"},
        {"order": "paper", "clamp": "off"},
        {"order": "paper", "eta": 0},
        {"order": "together", "clamp": "on", "eta": 0.9, "temperature": 1},
    ],
    ids=str,
)
def test_no_other_sampler_passes_for_the_paper_s(method, picture, values):
    (note,) = method.caption(picture, settings(method, num_candidates=1, **values)).notes
    assert "a way of our own" in note and "order = paper is the published code's" in note


def test_fresh_noise_is_refused_where_the_sampler_has_no_place_for_it(method, picture):
    with pytest.raises(
        SettingsError, match=r"eta = 1 is not possible with sampler = dpm-solver\+\+: give eta = 0, or sampler = ddim"
    ):
        method.caption(picture, settings(method, order="paper", sampler="dpm-solver++"))


def test_with_fresh_noise_rows_do_not_see_each_other(method, picture, sound):
    values = [
        settings(method, order="paper", length=6),
        settings(method, eta=0.5, clamp="on", num_steps=8),
        settings(method),
    ]
    media = [picture, sound, picture]
    for m, s, together in zip(media, values, method.caption_batch(media, values), strict=True):
        assert texts(together) == texts(method.caption(m, s))


def test_noise_that_hides_a_word_is_not_shown(method):
    net = method.models.prefix_denoiser()
    shown = net.legible(alpha_bars("truncated-linear").flip(0))  # from noise to word
    assert shown[0] == 0 and shown[-1] > 0.9 and (shown.diff() >= 0).all()
    prefix, x = net.prefix({}, torch.zeros(1), torch.tensor([0])), torch.randn(2, 1, 5, net.config.embed)
    for level, same in ((1e-5, True), (0.5, False)):
        one, other = (net.vectors(some, torch.tensor([level]), prefix, torch.tensor([4])) for some in x)
        assert torch.equal(one, other) == same


def test_plain_noise_is_shown_at_every_level():
    config = PrefixDenoiserConfig(vocab=40, embed=16, dim=32, layers=1, image_dim=8, audio_dim=8, shaded=False)
    net = PrefixDenoiser(config).eval()
    assert (net.legible(alpha_bars("truncated-linear")) == 1).all()
    prefix, x = net.prefix({}, torch.zeros(1), torch.tensor([0])), torch.randn(2, 1, 5, config.embed)
    one, other = (net.vectors(some, torch.tensor([1e-5]), prefix, torch.tensor([4])) for some in x)
    assert not torch.allclose(one, other, atol=1e-3)


def test_schedules_are_not_of_the_weights(method, picture):
    """The net is told the level of the noise and not the time, so every schedule may be asked of it."""
    assert (
        len({method.caption(picture, settings(method, schedule=name, num_candidates=1)).caption for name in SCHEDULES})
        > 1
    )
    assert betas("square").shape == betas("linear").shape

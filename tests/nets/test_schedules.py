"""Noise schedules at their ends by hand, diffusers' steps against the closed form, and rounding under constraints
against a search.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler

from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig, noised
from captioners.nets.rounding import ANY, TokenKinds, best_sequences, settled
from captioners.nets.schedules import SAMPLERS, SCHEDULES, STEPS, alpha_bars, betas, sampler

# β_1 and β_T, from the formulas with pencil and paper
ENDS = {
    "linear": (1e-4, 0.02),
    "truncated-linear": (0.0101, 0.03),
    "cosine": (1 - (math.cos(0.009 / 1.008 * math.pi / 2) / math.cos(0.008 / 1.008 * math.pi / 2)) ** 2, 0.999),
    "truncated-cosine": (
        1 - math.cos(math.pi / 22) ** 2,
        0.75,
    ),  # the last ᾱ is sin²(x), the one before sin²(2x): a quarter is left
    "square": (1 - (1 - math.sqrt(0.0011)) / (1 - math.sqrt(0.0001)), 0.999),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_begins_and_ends_where_the_formula_says(name):
    values = betas(name)
    assert values.shape == (STEPS,) == (1000,)
    assert values[[0, -1]] == pytest.approx(ENDS[name], rel=1e-4)
    assert (values > 0).all() and (values < 1).all()
    assert alpha_bars(name)[-1] < 1e-3  # nothing is left of the caption at the end
    assert (np.diff(alpha_bars(name)) < 0).all()


def test_there_are_the_papers_five():
    assert set(SCHEDULES) == {"linear", "square", "cosine", "truncated-cosine", "truncated-linear"}


@pytest.mark.parametrize("steps", [5, 30, 1000])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_ddim_step_is_the_closed_form(name, steps):
    """x_s = √ᾱ_s x0 + √(1 − ᾱ_s) (x_t − √ᾱ_t x0) / √(1 − ᾱ_t), and at the end x0 itself."""
    scheduler, levels = sampler("ddim", name, steps), torch.from_numpy(np.cumprod(1 - betas(name)))
    x0, x = torch.randn(2, 3, 8, dtype=torch.double), torch.randn(2, 3, 8, dtype=torch.double)
    assert len(scheduler.timesteps) == steps and scheduler.timesteps[0] == 999
    for here, there in itertools.pairwise([*scheduler.timesteps.tolist()[:2], scheduler.timesteps[-1].item(), None]):
        a, b = levels[here], torch.tensor(1.0) if there is None else levels[here - 1000 // steps]
        expected = b.sqrt() * x0 + (1 - b).sqrt() * (x - a.sqrt() * x0) / (1 - a).sqrt()
        assert torch.allclose(scheduler.step(x0, here, x).prev_sample, expected, atol=1e-5)


@pytest.mark.parametrize("steps", [10, 50, 1000])
@pytest.mark.parametrize("name", SCHEDULES)
def test_with_all_fresh_noise_a_ddim_step_is_ancestral_sampling(name, steps):
    """η = 1 is DDPM's step, by diffusers' own scheduler, with the same noise."""
    common = {
        "trained_betas": betas(name),
        "prediction_type": "sample",
        "timestep_spacing": "trailing",
        "clip_sample": False,
    }
    ddpm = DDPMScheduler(num_train_timesteps=STEPS, **common, variance_type="fixed_small")
    ddpm.set_timesteps(steps)
    scheduler, (x0, x) = sampler("ddim", name, steps), torch.randn(2, 2, 3, 8)
    for t in scheduler.timesteps[:: max(1, steps // 8)]:
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(int(t)))
        ours = scheduler.step(x0, t, x, eta=1.0, variance_noise=noise).prev_sample
        theirs = ddpm.step(x0, t, x, generator=torch.Generator().manual_seed(int(t))).prev_sample
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_is_told_the_truth_arrives_there(name, schedule):
    scheduler, x0 = sampler(name, schedule, 12), torch.randn(2, 3, 8)
    x = torch.randn(2, 3, 8)
    for t in scheduler.timesteps:
        x = scheduler.step(x0, t, x).prev_sample
    assert torch.allclose(x, x0, atol=1e-4)


def test_noise_has_the_variance_of_its_level():
    x0, level = torch.ones(20_000, 1, 4), torch.full((20_000,), 0.36)
    x = noised(x0, level, torch.randn(x0.shape, generator=torch.Generator().manual_seed(0)))
    assert x.mean().item() == pytest.approx(0.6, abs=0.01) and x.var().item() == pytest.approx(0.64, abs=0.01)


# --------------------------------------------------------------------------------------------------------- rounding


def test_text_to_embeddings_and_back_is_exact(embedded):
    tokenizer = embedded.models.tokenizer
    model = PrefixDenoiser(PrefixDenoiserConfig(vocab=len(tokenizer), embed=48, dim=32, layers=1, heads=2))
    ids = torch.arange(len(tokenizer))
    assert torch.equal(model.round(model.embed(ids)), ids)
    text = "two brown dogs run through the snow"
    assert tokenizer.decode(model.round(model.embed(torch.tensor(tokenizer.encode(text)))).tolist()) == text


@pytest.fixture
def kinds() -> TokenKinds:
    """0 the end, 1 and 2 begin a word, 3 goes on, 4 is never said."""
    return TokenKinds(torch.tensor([0, 1, 1, 0, 0]).bool(), torch.tensor([0, 0, 0, 1, 0]).bool(), 0)


def search(logp: torch.Tensor, words: int) -> tuple[list[int], float]:
    """Every sequence that is allowed, one by one."""
    best, value = [], -math.inf
    for ids in itertools.product(range(4), repeat=len(logp)):
        length = ids.index(0) if 0 in ids else len(ids)
        if length == 0 or ids[0] == 3 or any(ids[length:]) or (words and sum(i in (1, 2) for i in ids) != words):
            continue
        score = sum(logp[p, i].item() for p, i in enumerate(ids))
        best, value = (list(ids), score) if score > value else (best, value)
    return best, value


@pytest.mark.parametrize("words", [ANY, 1, 2, 3, 5])
def test_rounding_finds_the_best_sequence_there_is(kinds, words):
    logp = torch.randn(20, 5, 5, generator=torch.Generator().manual_seed(words)).mul(2).log_softmax(-1)
    found = best_sequences(logp, kinds, torch.full((20,), words))
    for row, ids in zip(logp, found.tolist(), strict=True):
        assert ids == search(row, words)[0]


def test_rows_may_have_fewer_positions_and_other_wishes(kinds):
    logp = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    found = best_sequences(logp, kinds, torch.tensor([2, ANY]), torch.tensor([4, 6])).tolist()
    assert found[0][:4] == search(logp[0, :4], 2)[0] and found[0][4:] == [0, 0]
    assert found[1] == search(logp[1], ANY)[0]


def test_what_cannot_be_had_gives_the_best_of_any_length(kinds):
    logp = torch.randn(1, 3, 5).log_softmax(-1)
    assert best_sequences(logp, kinds, torch.tensor([9])).tolist() == [search(logp[0], ANY)[0]]


def test_the_surest_words_settle_first_and_stay():
    held, words = torch.tensor([[-1, 7, -1, -1]]), torch.tensor([[1, 2, 3, 4]])
    sure = torch.tensor([[-3.0, -9.0, -1.0, -2.0]])
    assert settled(held, words, sure, torch.tensor([3])).tolist() == [[-1, 7, 3, 4]]
    assert settled(held, words, sure, torch.tensor([1])).tolist() == held.tolist()


def test_kinds_of_tokens_count_words_as_a_reader_does(embedded):
    tokenizer = embedded.models.tokenizer
    kinds = TokenKinds.of(tokenizer)
    assert not (kinds.begins & kinds.goes_on).any()
    for text in ("a man in a t-shirt, with a skateboard", "two unicyclists", "dogs"):
        assert kinds.words(torch.tensor([tokenizer.encode(text)])).item() == len(text.split())
    for token in tokenizer.special_ids:
        assert not kinds.begins[token] and not kinds.goes_on[token]

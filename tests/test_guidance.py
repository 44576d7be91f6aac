"""The papers' arithmetic: hand-computed values, identities between the formulas, and no NaN whatever is impossible."""

import math
from types import SimpleNamespace

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence
from transformers import UnbatchedClassifierFreeGuidanceLogitsProcessor

from captioners import guidance

SCALES = (0.0, 0.5, 1.0, 1.5, 2.0, 5.0)
INF = math.inf


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random log-probabilities."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(3).log_softmax(-1)


# --------------------------------------------------------------------------------------------------- by hand


def test_cfg_by_hand():
    # p(x|y) = .5 .25 .25, p(x) = .25 .25 .5; at γ = 2 p(x|y)² / p(x) = 1 .25 .125, which sums to 1.375
    scores = guidance.cfg(log(0.5, 0.25, 0.25), log(0.25, 0.25, 0.5), 2.0)
    torch.testing.assert_close(scores, log(1.0, 0.25, 0.125))
    torch.testing.assert_close(guidance.normalise(scores), log(8 / 11, 2 / 11, 1 / 11))


def test_lm_guidance_by_hand():
    # s = ½ lm + 2 c − 1 u: (.25 .5 .25)^½ · (.5 .25 .25)² / (.25 .25 .5) = .5 · 1, √.5 · .25, .5 · .125
    scores = guidance.lm_guided(
        log(0.5, 0.25, 0.25), log(0.25, 0.25, 0.5), log(0.25, 0.5, 0.25), alpha=2, beta=1, weight=0.5
    )
    torch.testing.assert_close(scores, log(0.5, 0.25 * math.sqrt(0.5), 0.0625))


def test_masked_condition_guidance_by_hand():
    full, masked = log(0.5, 0.5), log(0.8, 0.2)
    torch.testing.assert_close(guidance.mcs(full, masked, 2.0), log(0.25 / 0.8, 0.25 / 0.2))
    torch.testing.assert_close(guidance.mcs_printed(full, masked, 2.0), log(0.64 / 0.5, 0.04 / 0.5))


# --------------------------------------------------------------------------------------------------- identities


@pytest.mark.parametrize("scale", SCALES)
def test_cfg_equals_the_logits_processor_of_transformers(scale):
    generator = torch.Generator().manual_seed(1)
    cond, uncond = torch.randn(2, 3, 50, generator=generator) * 4

    class Model:
        """Answers with the unconditional logits, whatever it is asked."""

        def __call__(self, ids, **_):
            return Answer(logits=uncond[:, None])

    class Answer(SimpleNamespace):
        def get(self, name, default):
            return default

    theirs = UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, Model())(torch.zeros(3, 4, dtype=torch.long), cond)
    ours = guidance.cfg(cond.log_softmax(-1), uncond.log_softmax(-1), scale)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_scale_1_is_the_conditional_model_bit_for_bit():
    cond, uncond = some(4, 9), some(4, 9, seed=1)
    assert torch.equal(guidance.cfg(cond, uncond, 1.0), cond)
    assert torch.equal(guidance.cfg(cond, uncond, 0.0), uncond)
    assert torch.equal(guidance.mcs(cond, uncond, 1.0), cond)
    assert torch.equal(guidance.mcs_printed(cond, uncond, 0.0), cond)


@pytest.mark.parametrize("scale", SCALES)
def test_the_printed_masked_guidance_is_ours_at_one_minus_the_scale(scale):
    full, masked = some(4, 9), some(4, 9, seed=1)
    torch.testing.assert_close(guidance.mcs_printed(full, masked, scale), guidance.mcs(full, masked, 1 - scale))


@pytest.mark.parametrize("scale", SCALES)
def test_cfg_is_lm_guidance_without_the_lm(scale):
    cond, uncond, lm = some(4, 9), some(4, 9, seed=1), some(4, 9, seed=2)
    without = guidance.lm_guided(cond, uncond, lm, alpha=scale, beta=scale - 1, weight=0.0)
    torch.testing.assert_close(without, guidance.cfg(cond, uncond, scale))


def test_every_row_has_its_own_scale():
    cond, uncond, lm = some(2, 3, 9), some(2, 3, 9, seed=1), some(2, 3, 9, seed=2)
    scale = torch.tensor([[0.0, 1.0, 2.0], [0.5, 3.0, 5.0]], dtype=torch.float64)
    together = guidance.cfg(cond, uncond, scale)
    decoupled = guidance.lm_guided(cond, uncond, lm, scale, scale * 0.5, scale * 0.2)
    for i in range(2):
        for j in range(3):
            γ = scale[i, j].item()
            torch.testing.assert_close(together[i, j], guidance.cfg(cond[i, j], uncond[i, j], γ))
            torch.testing.assert_close(
                decoupled[i, j], guidance.lm_guided(cond[i, j], uncond[i, j], lm[i, j], γ, γ / 2, γ * 0.2)
            )


# --------------------------------------------------------------------------------------------- impossible tokens


def test_a_branch_that_is_off_forbids_nothing():
    cond, nothing = log(0.5, 0.5), torch.tensor([0.0, -INF], dtype=torch.float64)
    torch.testing.assert_close(guidance.cfg(cond, nothing, 1.0), cond)
    torch.testing.assert_close(guidance.lm_guided(cond, cond, nothing, 2.0, 1.0, weight=0.0), cond)


def test_a_branch_that_is_off_need_not_be_computed():
    cond, unknown = some(2, 9), torch.full((2, 9), math.nan, dtype=torch.float64)
    unknown[1] = some(9, seed=1)
    scores = guidance.lm_guided(
        cond, unknown, unknown, alpha=2.0, beta=torch.tensor([0.0, 1.0]), weight=torch.tensor([0.0, 0.5])
    )
    torch.testing.assert_close(scores, torch.stack([2 * cond[0], 2 * cond[1] - 0.5 * unknown[1]]))


def test_what_the_conditional_model_forbids_stays_forbidden():
    impossible = torch.tensor([0.0, -INF], dtype=torch.float64)
    assert guidance.cfg(impossible, impossible, 3.0).tolist() == [0.0, -INF]
    assert guidance.cfg(impossible, log(0.5, 0.5), 3.0)[1] == -INF
    assert guidance.lm_guided(log(0.5, 0.5), log(0.5, 0.5), impossible, 2.0, 1.0, weight=0.1)[1] == -INF


def test_pushing_away_from_the_impossible_is_no_encouragement_without_bound():
    scores = guidance.cfg(log(0.5, 0.5), torch.tensor([0.0, -INF], dtype=torch.float64), 2.0)
    assert torch.isfinite(scores).all()


# A value is finite or −inf: what a log-softmax with forbidden tokens can hold.
logits = st.one_of(st.floats(-60, 0), st.just(-INF))
shapes = arrays.array_shapes(min_dims=1, max_dims=4, max_side=5)
numbers = st.floats(-6, 6)


@st.composite
def branches(draw):
    """Three tensors of one shape, and a scale for all or for each row."""
    shape = draw(shapes)
    tensors = [torch.from_numpy(draw(arrays.arrays(np.float64, shape, elements=logits))) for _ in range(3)]
    scale = draw(st.one_of(numbers, arrays.arrays(np.float64, shape[:-1], elements=numbers).map(torch.from_numpy)))
    return *tensors, scale


@settings(max_examples=80, deadline=None)
@given(branches())
def test_no_result_is_ever_nan(drawn):
    a, b, c, scale = drawn
    for scores in (
        guidance.cfg(a, b, scale),
        guidance.mcs(a, b, scale),
        guidance.mcs_printed(a, b, scale),
        guidance.lm_guided(a, b, c, scale, scale, scale),
    ):
        assert scores.shape == a.shape
        assert not torch.isnan(scores).any()
        assert not torch.isposinf(scores).any()
        p = guidance.normalise(scores)
        assert not torch.isnan(p).any()
        torch.testing.assert_close(p.exp().sum(-1), torch.ones(a.shape[:-1], dtype=torch.float64))
        q = guidance.normalise(b)
        assert not torch.isnan(guidance.kl(p, q)).any()
        assert not torch.isnan(guidance.entropy(p)).any()


# ------------------------------------------------------------------------------------------- normalise, KL, entropy


def test_a_row_with_nothing_possible_becomes_uniform():
    torch.testing.assert_close(
        guidance.normalise(torch.full((2, 4), -INF, dtype=torch.float64)), log(0.25, 0.25, 0.25, 0.25).expand(2, 4)
    )


def test_kl_and_entropy_equal_those_of_torch():
    p, q = some(2, 5, 9), some(2, 5, 9, seed=1)
    torch.testing.assert_close(guidance.kl(p, q), kl_divergence(Categorical(logits=p), Categorical(logits=q)))
    torch.testing.assert_close(guidance.entropy(p), Categorical(logits=p).entropy())


def test_kl_and_entropy_of_impossible_tokens():
    half = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    assert guidance.entropy(half).item() == pytest.approx(math.log(2))
    assert guidance.kl(half, half).item() == 0
    assert guidance.kl(half, log(0.25, 0.25, 0.5)).item() == pytest.approx(math.log(2))
    assert guidance.kl(log(0.25, 0.25, 0.5), half).item() == INF

"""The mask-and-replace diffusion against the matrices it stands for, on a vocabulary small enough to write them
down.
"""

import itertools

import pytest
import torch

from captioners.nets.d3pm import MaskReplaceDiffusion, stride

VOCAB, STEPS = 5, 12
MASK = VOCAB


@pytest.fixture(scope="module", params=[0.9, 0.5], ids=lambda m: f"masked={m}")
def diffusion(request) -> MaskReplaceDiffusion:
    return MaskReplaceDiffusion(VOCAB, STEPS, request.param)


def one_step(diffusion: MaskReplaceDiffusion, t: int) -> torch.Tensor:
    """Q_t as the paper writes it, transposed so that rows are what a token becomes; from the schedule's definition
    alone.
    """
    most = diffusion.mask[-1].item()
    keep = [max(1 - k / STEPS, 1e-6) for k in (t - 1, t)]
    hide = [most * k / STEPS for k in (t - 1, t)]
    alpha, gamma = keep[1] / keep[0], 1 - (1 - hide[1]) / (1 - hide[0])
    q = torch.full((VOCAB + 1, VOCAB + 1), (1 - alpha - gamma) / VOCAB, dtype=torch.float64)
    q[range(VOCAB), range(VOCAB)] += alpha
    q[:, MASK], q[MASK] = gamma, 0
    q[MASK, MASK] = 1
    return q


def product(diffusion: MaskReplaceDiffusion, s: int, t: int) -> torch.Tensor:
    """Q_{s+1} … Q_t."""
    q = torch.eye(VOCAB + 1, dtype=torch.float64)
    for k in range(s + 1, t + 1):
        q = q @ one_step(diffusion, k)
    return q


def beliefs(count: int = 3) -> torch.Tensor:
    """log p(x0), (1, count, VOCAB)."""
    return torch.randn(1, count, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(-1)


def posterior(diffusion, x0: int, x_t: int, s: int, t: int) -> torch.Tensor:
    """Bayes: q(x_s | x_t, x0) over all x_s."""
    return product(diffusion, 0, s)[x0] * product(diffusion, s, t)[:, x_t] / product(diffusion, 0, t)[x0, x_t]


def test_every_row_of_the_transition_sums_to_one_and_the_mask_absorbs(diffusion):
    for t in range(1, STEPS + 1):
        q = product(diffusion, 0, t)
        assert torch.allclose(q.sum(1), torch.ones(VOCAB + 1, dtype=torch.float64), atol=1e-9)
        assert (q >= 0).all()
        assert q[MASK].tolist() == [0] * VOCAB + [1]
        assert diffusion.keep[t] + VOCAB * diffusion.replace[t] + diffusion.mask[t] == pytest.approx(1)


@pytest.mark.parametrize("t", range(STEPS + 1))
def test_q_is_the_product_of_the_matrices(diffusion, t):
    p = beliefs()
    assert torch.allclose(
        diffusion.q(p, torch.tensor([t])).exp(), p.exp() @ product(diffusion, 0, t)[:VOCAB], atol=1e-6
    )


@pytest.mark.parametrize("t", range(1, STEPS + 1))
@pytest.mark.parametrize("stride", [1, 2, 5, STEPS])
def test_the_posterior_is_bayes_rule_on_the_matrices_for_every_stride(diffusion, t, stride):
    s, p = max(0, t - stride), beliefs()
    for x_t in range(VOCAB + 1):
        expected = sum(p[0, :, [x0]].exp() * posterior(diffusion, x0, x_t, s, t) for x0 in range(VOCAB))
        found = diffusion.q_posterior(p, torch.full((1, 3), x_t), torch.tensor([s]), torch.tensor([t])).exp()[0]
        assert torch.allclose(found, expected, atol=1e-6)
        assert torch.allclose(found.sum(-1), torch.ones(3, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("t", [1, 2, STEPS // 2, STEPS])
def test_the_bound_is_the_divergence_between_the_two_posteriors(diffusion, t):
    p = beliefs(VOCAB + 1)
    x0, x_t = torch.full((1, VOCAB + 1), 2), torch.arange(VOCAB + 1)[None]
    found = diffusion.bound(p, x0, x_t, torch.tensor([t]))[0]
    for i in range(VOCAB + 1):
        true = posterior(diffusion, 2, i, t - 1, t)
        model = sum(p[0, i, k].exp() * posterior(diffusion, k, i, t - 1, t) for k in range(VOCAB))
        some = true > 0
        assert found[i].item() == pytest.approx((true[some] * (true[some] / model[some]).log()).sum().item(), abs=1e-6)
    if t == 1:
        assert torch.allclose(found, -p[0, :, 2], atol=1e-6)


def test_the_bound_has_a_finite_gradient_at_every_time_in_single_precision():
    diffusion = MaskReplaceDiffusion(500, 100)
    source = torch.Generator().manual_seed(0)
    t = torch.arange(1, 101)
    x0 = torch.randint(500, (100, 4), generator=source)
    logits = (20 * torch.randn(100, 4, 500, generator=source)).requires_grad_()
    diffusion.bound(logits.log_softmax(-1), x0, diffusion.q_sample(x0, t, source), t).sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize("t", [1, STEPS // 2, STEPS])
def test_samples_have_the_probabilities_of_q(diffusion, t):
    count = 40_000
    x_t = diffusion.q_sample(torch.full((1, count), 3), torch.tensor([t]), torch.Generator().manual_seed(1))
    found = x_t[0].bincount(minlength=VOCAB + 1) / count
    assert torch.allclose(found.double(), product(diffusion, 0, t)[3], atol=0.01)


def test_rows_of_different_times_do_not_touch_each_other(diffusion):
    p = beliefs(2).expand(3, 2, VOCAB)
    x_t, t = torch.tensor([[MASK, 1], [2, MASK], [MASK, MASK]]), torch.tensor([STEPS, 4, 1])
    s = torch.tensor([7, 1, 0])
    together = diffusion.q_posterior(p, x_t, s, t)
    for i in range(3):
        assert torch.equal(together[[i]], diffusion.q_posterior(p[[i]], x_t[[i]], s[[i]], t[[i]]))


@pytest.mark.parametrize("steps", range(1, 101))
def test_a_stride_goes_from_noise_to_clean_without_standing_still(steps):
    times = stride(100, steps)
    assert (times[0], times[-1], len(times)) == (100, 0, steps + 1)
    gaps = [a - b for a, b in itertools.pairwise(times)]
    assert min(gaps) >= 1
    assert max(gaps) - min(gaps) <= 1

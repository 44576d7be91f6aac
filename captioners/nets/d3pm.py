"""Discrete diffusion by masking and replacing (D3PM), with the schedule of VQ-Diffusion: the mathematics, without a
network.

A token is kept with ᾱ_t + β̄_t, replaced by each word with β̄_t and masked with γ̄_t; ᾱ falls linearly from 1 to 0
while γ̄ rises to `masked` and the whole of β̄ to 1 − `masked`. [MASK] is absorbing and has the index V, one past the
words. Rows of Q sum to one; because Q is the identity, a uniform part and a mask column, every product with it is
affine: nothing here is of size V × V.
"""

from __future__ import annotations

import torch
from torch import Tensor


class MaskReplaceDiffusion:
    """q and its posterior over V words and [MASK]. Times are tensors (b,) from 0 (clean) to `steps`.

    The schedule is kept in double precision, and on the CPU: the GPU of a Mac has none.
    """

    def __init__(self, vocab: int, steps: int = 100, masked: float = 0.9):
        self.vocab, self.steps = vocab, steps
        t = torch.arange(steps + 1, dtype=torch.float64) / steps
        keep = (1 - t).clamp(min=1e-6)  # never quite 0: what is left of x0 can be divided by
        self.keep, self.mask = keep, masked * t  # ᾱ_t, γ̄_t
        self.replace = (1 - keep - self.mask).clamp(min=0) / vocab  # β̄_t
        self.replace[0], self.keep[0] = 0.0, 1.0

    def _cumulative(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cumulative ᾱ, β̄, γ̄ at t."""
        t = t.cpu()
        return self.keep[t], self.replace[t], self.mask[t]

    def _between(self, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """α, β, γ of the one step from s to t > s; s = t − 1 gives Q_t."""
        (keep_s, _, mask_s), (keep_t, _, mask_t) = self._cumulative(s), self._cumulative(t)
        keep = keep_t / keep_s
        mask = 1 - (1 - mask_t) / (1 - mask_s)
        return keep, ((1 - keep - mask) / self.vocab).clamp(min=0), mask

    def q_sample(self, x0: Tensor, t: Tensor, source: torch.Generator | None = None) -> Tensor:
        """x_t of words x0 (b, n): each position is masked, replaced or kept on its own."""
        u = torch.rand(x0.shape, generator=source, device=x0.device)
        anything = torch.randint(self.vocab, x0.shape, generator=source, device=x0.device)
        _, replace, mask = (a.to(u.dtype).to(u.device)[:, None] for a in self._cumulative(t))
        return torch.where(u < mask, self.vocab, torch.where(u < mask + replace * self.vocab, anything, x0))

    def q(self, log_x0: Tensor, t: Tensor) -> Tensor:
        """log q(x_t | x0), averaged over log_x0 (b, n, V) → (b, n, V + 1)."""
        keep, replace, mask = (_column(a, log_x0) for a in self._cumulative(t))
        words = torch.logaddexp(log_x0 + keep, replace.expand_as(log_x0))
        return torch.cat([words, mask.expand_as(words[..., :1])], -1)

    def q_posterior(self, log_x0: Tensor, x_t: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """log p(x_s | x_t) = log Σ_x0 q(x_s | x_t, x0) p(x0) for any s < t: log_x0 (b, n, V), x_t (b, n) → (b, n, V
        + 1).
        """
        keep, replace, mask = (_column(a, log_x0) for a in self._between(s, t))
        keep_s, replace_s, mask_s = (_column(a, log_x0) for a in self._cumulative(s))
        keep_t, replace_t, mask_t = (_column(a, log_x0) for a in self._cumulative(t))
        hidden = (x_t == self.vocab)[..., None]
        at = x_t.clamp(max=self.vocab - 1)[..., None]
        # each x0 weighs p(x0) / q(x_t | x0);
        # that is γ̄_t under a mask, ᾱ_t + β̄_t where x0 is the word x_t, β̄_t elsewhere
        weights = log_x0 - torch.where(hidden, mask_t, replace_t)
        same_word = log_x0.gather(-1, at) - torch.where(hidden, mask_t, torch.logaddexp(keep_t, replace_t))
        weights = weights.scatter(-1, at, same_word)
        total = torch.where(hidden, -mask_t, weights.logsumexp(-1, keepdim=True))
        # Σ_x0 q(x_s | x0) · weight = ᾱ_s · weight(x_s) + β̄_s · Σ weights, then times q(x_t | x_s)
        words = torch.logaddexp(weights + keep_s, replace_s + total)
        step = torch.where(hidden, mask, replace)
        same_word = words.gather(-1, at) + torch.where(hidden, mask, torch.logaddexp(keep, replace))
        words = (words + step).scatter(-1, at, same_word)
        masked = torch.where(hidden, mask_s - mask_t, -torch.inf)
        return torch.cat([words, masked.expand_as(words[..., :1])], -1)

    def bound(self, log_x0: Tensor, x0: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """The variational bound's term L_{t−1} = KL(q(x_{t−1}|x_t, x0) ‖ p(x_{t−1}|x_t)) of each position (b, n).

        At t = 1 the term is −log p(x0 | x_1), which the same formula gives: q is then certain.
        """
        certain = torch.full_like(log_x0, -torch.inf).scatter(-1, x0[..., None], 0.0)
        true = self.q_posterior(certain, x_t, t - 1, t)
        model = self.q_posterior(log_x0, x_t, t - 1, t)
        return (true.exp() * (true.clamp(min=-1e4) - model.clamp(min=-1e4))).sum(-1)


def stride(total: int, steps: int) -> list[int]:
    """Times from `total` down to 0 in `steps` ≤ total steps of nearly equal size."""
    return [round(total * k / steps) for k in range(steps, -1, -1)]


def _column(value: Tensor, like: Tensor) -> Tensor:
    """A probability per row as a logarithm that broadcasts over (b, n, V); log 0 is −inf."""
    return value.log().to(like.dtype).to(like.device)[:, None, None]

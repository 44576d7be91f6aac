"""The papers' arithmetic on log-probabilities: pure functions on tensors of any shape, no models.

The last dimension is the vocabulary. Scales may be numbers or tensors that broadcast against the leading
dimensions (one scale per row). Log-probabilities may hold −inf; no result is ever NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

Scale = float | Tensor


def mix(*terms: tuple[Scale, Tensor]) -> Tensor:
    """Σ weight · log p; a branch of weight 0 has no say, even where it is −inf or was never computed (NaN).

    A token that any branch with a positive weight forbids stays forbidden, whatever the negative branches say:
    (+w)(−inf) and (−w)(−inf) in one sum would be NaN, and an impossible token must not be made possible.
    """
    total: Tensor | float = 0.0
    for scale, logp in terms:
        weight = _column(scale, logp)
        term = weight * logp.masked_fill(weight == 0, 0.0)
        # pushed away from something impossible (+inf): neither encouraged without bound nor forbidden
        total = total + torch.nan_to_num(term, nan=torch.nan, posinf=0.0, neginf=-torch.inf)
    return torch.as_tensor(total)


def _column(weight: Scale, like: Tensor) -> Tensor:
    weight = torch.as_tensor(weight, dtype=like.dtype, device=like.device)
    return weight[..., None] if weight.ndim else weight


def cfg(cond: Tensor, uncond: Tensor, scale: Scale) -> Tensor:
    """Classifier-free guidance: s = u + γ (c − u). γ = 1 is the conditional model, 0 the unconditional one."""
    scale = torch.as_tensor(scale, dtype=cond.dtype, device=cond.device)
    return mix((scale, cond), (1 - scale, uncond))


def lm_guided(cond: Tensor, uncond: Tensor, lm: Tensor, alpha: Scale, beta: Scale, weight: Scale = 1.0) -> Tensor:
    """Language-model guidance with decoupled exponents: s = w · lm + α c − β u (arXiv 2307.16686; w = 1 there)."""
    beta = torch.as_tensor(beta, dtype=cond.dtype, device=cond.device)
    return mix((weight, lm), (alpha, cond), (-beta, uncond))


def mcs(full: Tensor, masked: Tensor, scale: Scale) -> Tensor:
    """Masked-condition guidance in the direction a user expects: s = γ full + (1 − γ) masked. γ = 1 is off."""
    return cfg(full, masked, scale)


def mcs_printed(full: Tensor, masked: Tensor, scale: Scale) -> Tensor:
    """As the paper prints it: s = γ masked + (1 − γ) full. 0 is off, 1 the masked condition alone."""
    return cfg(masked, full, scale)


def normalise(scores: Tensor) -> Tensor:
    """Guided scores as log-probabilities again. A row with nothing possible becomes uniform rather than NaN."""
    dead = torch.isneginf(scores).all(-1, keepdim=True)
    return torch.log_softmax(scores.masked_fill(dead, 0.0), dim=-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) of log-probabilities, over the last dimension; 0 · log 0 = 0."""
    probability = p.exp()  # 0 also where a very small log-probability leaves nothing
    return (probability * (p - q)).masked_fill(probability == 0, 0.0).sum(-1)


def entropy(p: Tensor) -> Tensor:
    """Entropy of log-probabilities in nats, over the last dimension."""
    return -(p.exp() * p).masked_fill(torch.isneginf(p), 0.0).sum(-1)

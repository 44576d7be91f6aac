"""The end of part `cfg`, after the self-critical rounds: three short stages.

Rewards make a model repeat what is safe. So it first goes back halfway to people's captions, by averaging its weights with those of a
short likelihood training that starts from them (as arXiv 2109.01903 does after fine-tuning). Then the conditional branch learns what slight
guidance makes of it, so that captions of different pictures differ more. Last the null cell, which the conditional branch does not see,
learns alone: along drawn captions it follows what the conditional branch says, so that p(x) is the marginal of p(x|y) again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captioners import guidance
from captioners.nets.captioner import CaptionDecoder, Condition
from captioners.training import Job
from captioners.training.loop import fit
from captioners.training.self_critical import draw

if TYPE_CHECKING:
    from captioners.training.captioner import Examples, Pairs

BACK_STEPS, BACK_LR = 160, 3e-4
SHARPER_STEPS, SHARPER_PICTURES, SHARPER_LR = 100, 64, 1e-4
SCALE = 1.2  # of the guidance that becomes the model's own
NULL_STEPS, NULL_PICTURES, NULL_LR = 100, 96, 2e-2


def finish(name: str, job: Job, decoder: CaptionDecoder, pairs: Pairs, save: Callable) -> dict[str, Any]:
    """All three stages; returns the report of the last one with the others inside."""
    once, reports = replace(job, epochs=None, start=None), {}
    for stage in (go_back, sharpen):
        decoder, reports[stage.__name__] = stage(f"{name}-{stage.__name__}", once, decoder, pairs)
    return reports | fit_marginal(name, once, decoder, pairs, save)


def go_back(name: str, job: Job, decoder: CaptionDecoder, pairs: Pairs) -> tuple[CaptionDecoder, dict[str, Any]]:
    """Halfway to people's captions: the average of the weights before and after a short likelihood training."""
    before, likelihood = deepcopy(decoder.state_dict()), partial(pairs.likelihood, smoothing=0.0)

    def batches(epoch: int) -> Iterator[Examples]:
        return islice(pairs.batches(epoch), BACK_STEPS)

    after, report = fit(job, name, decoder, batches, BACK_STEPS, likelihood, pairs.evaluate, 1, BACK_LR, "cider", 0.01, ema=0.98)
    after.load_state_dict({key: (value + before[key].to(value.device)) / 2 for key, value in after.state_dict().items()})
    return after, report


def sharpen(name: str, job: Job, decoder: CaptionDecoder, pairs: Pairs) -> tuple[CaptionDecoder, dict[str, Any]]:
    """The conditional branch learns the guided distribution of the model as it is now."""
    teacher = deepcopy(decoder).eval().requires_grad_(False)

    def loss(model: CaptionDecoder, grids: Tensor) -> Tensor:
        model.eval()
        teacher.to(model.null.device)
        ids, said, condition = _drawn(teacher, pairs, grids)
        seen, alone = (teacher(ids[:, :-1], c)[0][said].log_softmax(-1) for c in (condition, condition.removed()))
        wanted = guidance.cfg(seen, alone, SCALE).softmax(-1)
        mine = model.condition({"image": grids.to(model.null.device)}, torch.arange(len(grids), device=model.null.device))
        return F.cross_entropy(model(ids[:, :-1], mine)[0][said], wanted)

    batches = _batches(job, pairs, SHARPER_STEPS, SHARPER_PICTURES)
    return fit(job, name, decoder, batches, SHARPER_STEPS, loss, pairs.evaluate, 1, SHARPER_LR, "cider", 0.0, ema=0.95)


def fit_marginal(name: str, job: Job, decoder: CaptionDecoder, pairs: Pairs, save: Callable) -> dict[str, Any]:
    """The null cell alone learns, p(x|y) stays as it is; returns the report of `fit`."""

    def loss(model: CaptionDecoder, grids: Tensor) -> Tensor:
        model.eval()
        ids, said, condition = _drawn(model, pairs, grids)
        with torch.no_grad():
            known = model(ids[:, :-1], condition)[0][said].softmax(-1)
        return F.cross_entropy(model(ids[:, :-1], condition.removed())[0][said], known)

    decoder.requires_grad_(False)
    decoder.null.requires_grad_(True)
    batches = _batches(job, pairs, NULL_STEPS, NULL_PICTURES)
    _, report = fit(job, name, decoder, batches, NULL_STEPS, loss, pairs.evaluate, 1, NULL_LR, "cider", save=save, ema=0.9)
    return report


def _batches(job: Job, pairs: Pairs, steps: int, pictures: int) -> Callable[[int], Iterator[Tensor]]:
    """Grids of random pictures."""

    def batches(epoch: int) -> Iterator[Tensor]:
        rng = random.Random(job.seed * 1000 + 900 + epoch)
        for _ in range(steps):
            yield pairs.grids(torch.tensor(rng.sample(range(len(pairs.rows)), pictures)), rng)

    return batches


def _drawn(model: CaptionDecoder, pairs: Pairs, grids: Tensor) -> tuple[Tensor, Tensor, Condition]:
    """Captions of these pictures, (b, t); which of their tokens behind the start are there; and what they were drawn with."""
    device = model.null.device
    condition = model.condition({"image": grids.to(device)}, torch.arange(len(grids), device=device))
    ids = draw(model, pairs.tokenizer, condition, pairs.tokenizer.start("image"), temperature=1.0)
    return ids, ids[:, 1:] != pairs.tokenizer.pad, condition

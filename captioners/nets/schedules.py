"""The five noise schedules of Prefix-diffusion (arXiv 2309.04965) and the samplers that run on them.

A schedule is a list of T betas: x_t = √(1 − β_t) x_{t−1} + √β_t ε. The samplers are diffusers' own, told to expect x0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

STEPS = 1000  # T of the paper
LARGEST_BETA = 0.999
SAMPLERS = ("ddim", "dpm-solver++")
_IMPORTING = Lock()


def betas(schedule: str, steps: int = STEPS) -> np.ndarray:
    """(steps,) float64: the noise that each step adds."""
    return SCHEDULES[schedule](steps)


def alpha_bars(schedule: str, steps: int = STEPS) -> Tensor:
    """(steps,) float32: ᾱ_t = Π (1 − β), the share of the signal's variance that is left after step t."""
    return torch.from_numpy(np.cumprod(1 - betas(schedule, steps))).float()


def _line(first: float, last: float) -> Callable[[int], np.ndarray]:
    """Betas on a line; given for T = 1000, and scaled so that other T end at the same noise."""
    return lambda steps: np.linspace(first, last, steps) * STEPS / steps


def _from_alpha_bar(alpha_bar: Callable[[float], float], truncated: bool = False) -> Callable[[int], np.ndarray]:
    """Betas that follow ᾱ(t), t from 0 to 1; a truncated schedule does not begin at ᾱ = 1 but jumps to ᾱ(0) in its
    first step.
    """

    def made(steps: int) -> np.ndarray:
        points = [alpha_bar(i / steps) for i in range(steps + 1)]
        points = [1.0, *points[:-1]] if truncated else points
        return np.array([min(1 - b / a, LARGEST_BETA) for a, b in pairwise(points)])

    return made


SCHEDULES: dict[str, Callable[[int], np.ndarray]] = {
    "truncated-linear": _line(0.0101, 0.03),
    "truncated-cosine": _from_alpha_bar(lambda t: math.cos((t + 0.1) / 1.1 * math.pi / 2) ** 2, truncated=True),
    "linear": _line(1e-4, 0.02),
    "cosine": _from_alpha_bar(lambda t: math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2),
    "square": _from_alpha_bar(lambda t: max(0.0, 1 - math.sqrt(t + 1e-4))),
}


def sampler(name: str, schedule: str, num_steps: int) -> Any:
    """A diffusers scheduler set to `num_steps` of the schedule's T steps; its `step` takes a predicted x0."""
    with _IMPORTING:  # diffusers replaces its own module while it is imported: a second thread would find it empty
        from diffusers import DDIMScheduler, DPMSolverMultistepScheduler  # takes a second: only when it is used

    common = {
        "num_train_timesteps": STEPS,
        "trained_betas": betas(schedule),
        "prediction_type": "sample",
        "timestep_spacing": "trailing",
    }
    scheduler = {
        "ddim": lambda: DDIMScheduler(**common, clip_sample=False),
        "dpm-solver++": lambda: DPMSolverMultistepScheduler(
            **common, solver_order=2, lower_order_final=True, final_sigmas_type="zero"
        ),
    }[name]()
    scheduler.set_timesteps(num_steps)
    return scheduler

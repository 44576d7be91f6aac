"""How method 4 goes from noise to words, as its controls ask: the paper's published code, or what is offered beside it.

The published code denoises all words together from noise of full strength, clamps the network's vectors to the nearest
words at every step, which are the likeliest ones of the tied rounding head, and draws the next state with η = 1, which
is ancestral sampling (DDPM). Here words may also settle one by one, and a state may be the mean path (η = 0).
"""

from __future__ import annotations

from dataclasses import dataclass

from captioners.controls import choice, number
from captioners.types import Settings, SettingsError

ORDER = choice(
    "order",
    "Order",
    "confidence settles the surest words first, and the others denoise around them; together denoises all words to "
    "the end, best with η = 1 at a temperature of 0.5 or less; paper is the published code's sampler: together, from "
    "noise of full strength, with clamp and η = 1.",
    ("confidence", "together", "paper"),
)
CLAMP = choice(
    "clamp",
    "Clamp",
    "on rounds the caption that is believed in to its likeliest words at every step, off leaves it between words; "
    "auto is on in order paper alone.",
    ("auto", "on", "off"),
)
ETA = number(
    "eta",
    "Fresh noise η",
    "How much fresh noise a ddim step adds: 0 none, 1 as much as the diffusion had; auto is 1 in order paper, else 0.",
    None,
    0,
    1,
    0.1,
    optional=True,
)


@dataclass(frozen=True)
class EmbeddingSampling:
    """What the controls come to for one input."""

    settles: bool  # the surest words first
    clamp: bool
    eta: float
    noise: float | None  # strength of all noise; None: the caption's temperature
    sampler: str

    @classmethod
    def of(cls, settings: Settings) -> EmbeddingSampling:
        """Refuses fresh noise where the sampler has no place for it."""
        paper = settings["order"] == "paper"
        clamp = paper if settings["clamp"] == "auto" else settings["clamp"] == "on"
        eta = float(paper) if settings["eta"] is None else settings["eta"]
        if eta and settings["sampler"] != "ddim":
            sampler = settings["sampler"]
            raise SettingsError(
                f"eta = {eta:g} is not possible with sampler = {sampler}: give eta = 0, or sampler = ddim."
            )
        noise = 1.0 if paper or settings["temperature"] == 1 else None
        return cls(settings["order"] == "confidence", clamp, eta, noise, settings["sampler"])

    @property
    def published(self) -> bool:
        """Whether this is the published code's sampler."""
        return not self.settles and self.clamp and self.eta == 1 and self.noise == 1

    def told(self) -> str:
        """What a card says of it."""
        if self.published:
            how = "all words together, x0 clamped to the likeliest words at every step, η = 1"
            return f"Sampled as the paper's published code does: {how}."
        order = "the surest words settled first" if self.settles else "all words together"
        x0 = "clamped to the likeliest words at every step" if self.clamp else "a mean over words"
        return (
            f"Sampled in a way of our own: {order}, x0 {x0}, η = {self.eta:g}; order = paper is the published code's."
        )

"""How method 4 goes from noise to words, as its controls ask: the paper's published code, or what is offered beside it.

The published code denoises all words together, clamps the network's vectors to the nearest words at every step, which
are the likeliest ones of the tied rounding head, and draws the next state with η = 1, which is ancestral sampling
(DDPM). Its noise has full strength, a temperature of 1; less makes plainer captions, as it does in every order. Here
words may also settle one by one, and a state may be the mean path (η = 0).
"""

from __future__ import annotations

from dataclasses import dataclass

from captioners.controls import choice, number
from captioners.types import Settings, SettingsError

ORDER = choice(
    "order",
    "Order",
    "confidence settles the surest words first, and the others denoise around them; together denoises all words to "
    "the end; paper is the published code's sampler: together, with clamp and η = 1 (published at a temperature of 1).",
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
    temperature: float  # strength of all noise
    once: bool  # words that settle one by one are not said twice
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
        once = settings["repeats"] == "once"
        return cls(settings["order"] == "confidence", clamp, eta, settings["temperature"], once, settings["sampler"])

    @property
    def published(self) -> bool:
        """Whether this is the published code's sampler, whatever the strength of its noise."""
        return not self.settles and self.clamp and self.eta == 1

    def told(self) -> str:
        """What a card says of it."""
        if self.published:
            how = "all words together, x0 clamped to the likeliest words at every step, η = 1"
            if self.temperature == 1:
                return f"Sampled as the paper's published code does: {how}."
            noise = f"with noise of {self.temperature:g} of its strength; temperature = 1 is as published"
            return f"Sampled by the paper's published code's rule: {how}, {noise}."
        settled = "the surest words settled first" + ", no content word twice" * self.once
        order = settled if self.settles else "all words together"
        x0 = "clamped to the likeliest words at every step" if self.clamp else "a mean over words"
        return (
            f"Sampled in a way of our own: {order}, x0 {x0}, η = {self.eta:g}; order = paper is the published code's."
        )

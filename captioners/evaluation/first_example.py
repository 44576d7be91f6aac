"""Which file should the page open on? The one for which guidance visibly helps on the most cards, by measurement.

`python -m captioners.evaluation.first_example FILE …` captions every file by every method, guided and unguided, and
lists the files, the best first: on how many cards the caption changes and the judge likes the change, and by how much.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from captioners.lab import Lab, choose_methods
from captioners.media import load_media
from captioners.types import CaptionLabError, Media, Result


@dataclass(frozen=True)
class Card:
    """One method on one file."""

    method: str
    guided: str
    unguided: str
    gain: float  # of CLIPScore by guidance

    @property
    def helps(self) -> bool:
        """Whether a visitor sees guidance help."""
        return self.guided != self.unguided and self.gain > 0


@dataclass(frozen=True)
class Showing:
    """One file by every method that knows it."""

    name: str
    cards: list[Card]

    @property
    def worth(self) -> tuple[int, float]:
        """On how many cards guidance helps, and the mean gain of those."""
        gains = [card.gain for card in self.cards if card.helps]
        return len(gains), sum(gains) / max(1, len(gains))


def show(lab: Lab, media: Media) -> Showing:
    """Caption one file by every method, guided by its defaults and not at all."""
    cards = []
    for spec in choose_methods(media.kind):
        settings = spec.settings().untraced()
        guided, plain = lab.results([media] * 2, spec.id, [settings, spec.without_guidance(settings)])
        cards.append(Card(spec.id, guided.caption, plain.caption, _clipscore(guided) - _clipscore(plain)))
    return Showing(media.name, cards)


def _clipscore(result: Result) -> float:
    return result.scores["clipscore"].value if "clipscore" in result.scores else 0.0


def ranked(showings: Sequence[Showing]) -> list[Showing]:
    """The files sorted, the best first."""
    return sorted(showings, key=lambda s: s.worth, reverse=True)


def text(showings: Sequence[Showing]) -> str:
    """The outcome as text, a paragraph for each file."""
    lines = []
    for showing in ranked(showings):
        count, gain = showing.worth
        lines.append(f"{showing.name}: guidance helps on {count} of {len(showing.cards)} cards, by {gain:.2f}")
        lines += [f"  {card.method} {card.gain:+.2f}  {card.guided}  <  {card.unguided}" for card in showing.cards]
    return "\n".join(lines)


def main(files: Sequence[str]) -> int:
    """Files or folders of them."""
    paths = [p for name in files for p in (sorted(Path(name).iterdir()) if Path(name).is_dir() else [Path(name)])]
    if not paths:
        print("usage: python -m captioners.evaluation.first_example FILE …", file=sys.stderr)
        return 2
    lab, showings = Lab(), []
    for path in paths:
        try:
            showings.append(show(lab, load_media(path)))
        except CaptionLabError as error:
            print(f"{path.name} is left out: {error}", file=sys.stderr)
    print(text(showings))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

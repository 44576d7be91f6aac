"""Where a word comes from: how much each cell of the input supports each word of a finished caption.

log p(word | input) − log p(word | input without the cell), teacher-forced, all cells in one batch. A method says how
its caption is scored when cells are hidden (`Captioner.score_without`); page, API, JSON and the metric `pointing` all
use the numbers made here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from captioners.types import Media, Modality, Result, TokenTrace, from_json, to_json

if TYPE_CHECKING:
    from torch import Tensor

    from captioners.captioner import Captioner

# rows and columns; a sound's are frequency and time
GRIDS: dict[Modality, tuple[int, int]] = {"image": (7, 7), "audio": (2, 10)}
# a cell is hidden with its neighbours this far away, who tell much of the same
REACH: dict[Modality, int] = {"image": 1, "audio": 0}
CELL_SECONDS = 0.512  # of a sound's column: a tenth of the encoder's window


@dataclass(frozen=True)
class WordSupport:
    """One word and what each cell adds to it."""

    word: str
    positions: list[int]  # its tokens in the trace
    cells: list[float]  # nats, row by row; below 0 where a cell speaks against the word

    @property
    def strongest(self) -> int:
        """The cell that supports the word most."""
        return max(range(len(self.cells)), key=self.cells.__getitem__)


@dataclass(frozen=True)
class Attribution:
    """What each cell adds to each word of one caption."""

    shape: tuple[int, int]
    words: list[WordSupport]


def attribute(method: Captioner, media: Media, result: Result, reach: int | None = None) -> Attribution | None:
    """Where the words of a result come from; None if the method cannot tell, or the result has no trace."""
    import torch

    shape = GRIDS[media.kind]
    words = words_of(result.trace)
    if not words:
        return None
    windows = hidden_windows(shape, REACH[media.kind] if reach is None else reach)
    scores = method.for_kind(media.kind).score_without(
        media, result, torch.cat([torch.zeros_like(windows[:1]), windows])
    )
    if scores is None:
        return None
    support = spread((scores[:1] - scores[1:]).cpu(), windows)  # (cells, tokens)
    return Attribution(shape, [_support(word, at, support) for word, at in words])


def _support(word: str, positions: list[int], support: Tensor) -> WordSupport:
    return WordSupport(word, positions, [round(value, 4) for value in support[:, positions].sum(1).tolist()])


def explained(method: Captioner, media: Media, result: Result) -> Result:
    """The result with where its words come from among its details."""
    attribution = attribute(method, media, result)
    return replace(result, details={**result.details, "attribution": to_json(attribution)}) if attribution else result


def hidden_windows(shape: tuple[int, int], reach: int) -> Tensor:
    """(cells, cells): row i hides cell i and its neighbours up to `reach` away."""
    import torch

    rows, columns = shape
    y, x = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    return ((y[:, None] - y).abs() <= reach) & ((x[:, None] - x).abs() <= reach)


def spread(support: Tensor, windows: Tensor) -> Tensor:
    """What a cell adds is the mean of what the windows over it add: (windows, t) → (cells, t)."""
    shares = windows.to(support.dtype)
    return shares.T @ support / shares.sum(0)[:, None]


def words_of(trace: Sequence[TokenTrace]) -> list[tuple[str, list[int]]]:
    """The words of a trace with the positions of their pieces; punctuation and the end of the sentence are no words."""
    words: list[tuple[str, list[int]]] = []
    for token in trace:
        piece = token.token
        if not any(c.isalnum() for c in piece) or (piece.startswith("<") and piece.endswith(">")):
            continue
        if not words or piece.startswith(" "):
            words.append(("", []))
        word, positions = words[-1]
        words[-1] = (word + piece.strip(), [*positions, token.position])
    return words


def along_time(cells: Sequence[float], seconds: float) -> list[float]:
    """A sound's cells as what each stretch of CELL_SECONDS adds, over the whole clip.

    Frequencies are added up. A clip longer than the encoder's window was averaged over its windows, so they all tell
    the same.
    """
    rows, columns = GRIDS["audio"]
    by_column = [sum(cells[row * columns + column] for row in range(rows)) for column in range(columns)]
    return [by_column[i % columns] for i in range(max(1, round(seconds / CELL_SECONDS)))]


def of_result(result: Result) -> Attribution | None:
    """What `explained` wrote into a result."""
    saved = result.details.get("attribution")
    attribution: Attribution | None = from_json(Attribution, saved) if saved else None
    return attribution

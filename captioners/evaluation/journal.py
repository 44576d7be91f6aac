"""What a run has done so far, one line for each batch, so that a killed run goes on where it was and ends with the
same numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captioners.evaluation.dataset import Item
from captioners.evaluation.worker import BatchResult, Plan
from captioners.types import CaptionLabError, from_json, to_json


class Journal:
    """The finished batches of one plan over one list of items, kept in a file (or nowhere, without one)."""

    def __init__(self, path: Path | None, items: Sequence[Item], plan: Plan, profile: str):
        self.path, self.results = path, list[BatchResult]()
        head = {"profile": profile, "plan": to_json(plan), "items": [item.id for item in items]}
        if path is None:
            return
        if path.exists():
            self.results = self._resumed(path, json.loads(json.dumps(head)))
        else:
            self._append(head)

    @property
    def done(self) -> set[str]:
        """The items that need no more work."""
        return {name for result in self.results for name in (*result.ids, *result.failed)}

    def add(self, result: BatchResult) -> None:
        """Keeps a batch; refuses one that was made with other weights than those before it."""
        for part, digest in result.weights.items():
            if any(before.weights.get(part, digest) != digest for before in self.results):
                raise CaptionLabError(
                    f"The weights of {part} have changed since this run began: remove {self.path} and start again."
                )
        self.results.append(result)
        self._append(to_json(result))

    def _append(self, line: dict[str, Any]) -> None:
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _resumed(self, path: Path, head: dict[str, Any]) -> list[BatchResult]:
        """The whole lines; one that was cut by the kill is cut off the file too."""
        text = path.read_text(encoding="utf-8")
        complete = text[: text.rfind("\n") + 1]
        try:
            lines = [json.loads(line) for line in complete.splitlines()]
        except json.JSONDecodeError:
            raise CaptionLabError(f"{path} is damaged: remove it and start again.") from None
        if lines and lines[0] != head:
            raise CaptionLabError(
                f"{path} was left by a run with other items or settings: finish that run, or remove the file."
            )
        if complete != text:
            path.write_text(complete, encoding="utf-8")
        if not lines:
            self._append(head)
        return [from_json(BatchResult, line) for line in lines[1:]]

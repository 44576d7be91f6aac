"""Whether two results are the same but for rounding and for how long they took."""

from typing import Any

import pytest

from captioners.types import Result, to_json


def content(result: Result) -> dict[str, Any]:
    """Everything but how long it took.

    Alternatives that are equally likely may change places, so they are sorted by value alone.
    """
    found = to_json(result)
    for name in ("seconds", "calls", "weights"):
        found.pop(name)
    for entry in found["trace"]:
        entry["alternatives"] = {name: [a["logprob"] for a in some] for name, some in entry["alternatives"].items()}
    return found


def close(one: Any, other: Any, within: float = 1e-4, path: str = "") -> None:
    """Equal but for rounding, through all of a result's JSON."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            close(one[key], other[key], within, f"{path}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            close(a, b, within, f"{path}[{i}]")
    elif isinstance(one, float):
        assert other == pytest.approx(one, abs=within), path
    else:
        assert one == other, path

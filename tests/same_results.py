"""Whether a change left captions, traces and scores as they were, bit by bit: over methods, pictures and sounds, seeds
and settings.

python tests/same_results.py record before.json     # on the commit before the change python tests/same_results.py
record after.json      # after it python tests/same_results.py compare before.json after.json
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import captioners
from captioners.resources import EXAMPLES
from captioners.types import Result, to_json

FILES = ("dog.jpg", "coffee.jpg", "rooster.ogg", "guitar.ogg")
VARIANTS = {
    "cfg": (
        {},
        {"guidance_scale": 1},
        {"guidance_scale": 3, "lm_weight": 0.3, "num_candidates": 3, "lm_prompt": "a dog runs|a cat sits"},
        {"temperature": 0.8, "no_repeat": 2},
    ),
    "classifier": (
        {"max_tokens": 8},
        {"guidance_scale": 1, "num_candidates": 2},
        {"route": "faithful", "max_tokens": 2, "top_k": 64, "num_steps": 2},
    ),
    "mc-diffusion": (
        {},
        {"guidance_scale": 1},
        {"guidance": "cfg", "order": "random", "temperature": 0.7, "num_candidates": 2},
    ),
    "prefix-diffusion": (
        {},
        {"guidance_scale": 2, "num_candidates": 4, "ranking": "mbr"},
        {"order": "together", "num_candidates": 1, "num_steps": 10},
    ),
}


def content(result: Result) -> dict:
    """All of a result but how long it took."""
    return {name: value for name, value in to_json(result).items() if name != "seconds"}


def record() -> dict:
    """Every result, alone and in mixed batches, and the steps of some."""
    torch.set_num_threads(1)
    lab, found = captioners.Lab("embedded", "cpu"), {}
    media = [captioners.load_media(EXAMPLES / name) for name in FILES]
    for name, variants in VARIANTS.items():
        method = lab.method(name)
        for seed in (0, 1):
            for number, values in enumerate(variants):
                settings = method.spec.settings(seed=seed, **values)
                for item in media:
                    *steps, last = method.stream(item, settings)
                    key = f"{name} {number} seed {seed} {item.name}"
                    found[key] = content(lab.score(last.result, item))
                    found[f"{key} steps"] = [[s.position, s.total, to_json(s.tokens), s.others] for s in steps]
            forced = method.spec.settings(seed=seed, forced={0: " two", 1: " dogs"})
            batch = method.caption_batch(media, [forced, *(method.spec.settings(seed=s) for s in range(3))])
            found[f"{name} batch {seed}"] = [content(result) for result in batch]
    return found


def differences(one: object, other: object, path: str = "") -> Iterator[str]:
    """The places at which two records differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{path}[{i}]")
    elif one != other:
        yield f"{path}: {one!r} → {other!r}"


def main(command: str, *files: str) -> int:
    """`record FILE` or `compare FILE FILE`; 1 where results differ."""
    if command == "record":
        Path(files[0]).write_text(json.dumps(record()), encoding="utf-8")
        return 0
    found = list(differences(*(json.loads(Path(file).read_text(encoding="utf-8")) for file in files)))
    print("\n".join(found[:20] or ["bit-equal"]))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""The clips that training holds back, as a folder for `evaluate`: sound sets that come as a table of labels have no
splits of their own.

`python -m captioners.training.held_out_clips DATA OUT` writes OUT/captions.jsonl, a split for each sound set, and
copies the files.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from captioners.sound_classes import SOUND_CLASSES
from captioners.training import corpus


def write(data: Path, out: Path) -> dict[str, int]:
    """The held-out clips of every sound set below `data`; returns how many there are of each."""
    (out / "audio").mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    rows = []
    for clip in corpus.clips(data):
        if clip.held_out:
            shutil.copy(clip.path, out / "audio" / clip.path.name)
            captions = SOUND_CLASSES[clip.category].captions
            row = {"audio": clip.path.name, "split": clip.source, "category": clip.category, "captions": list(captions)}
            rows.append(json.dumps(row, ensure_ascii=False))
            counts[clip.source] = counts.get(clip.source, 0) + 1
    (out / "captions.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return counts


def main(arguments: Sequence[str]) -> int:
    """Two arguments: the data folder of the training, and the folder to write."""
    if len(arguments) != 2:
        print("usage: python -m captioners.training.held_out_clips DATA OUT", file=sys.stderr)
        return 2
    try:
        counts = write(Path(arguments[0]), Path(arguments[1]))
    except OSError as error:
        print(f"{error}: give the data folder that data.toml describes, and a folder to write.", file=sys.stderr)
        return 2
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

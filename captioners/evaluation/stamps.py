"""Another domain to score on: Tux Paint's stamps, photographs of single things, each with one sentence.

`python -m captioners.evaluation.stamps OUT` makes a folder for `evaluate` out of Debian's package
`tuxpaint-stamps-default` (free licences, listed in it). Drawings, signs and flags are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from captioners.evaluation.check_command import exit_code
from captioners.media import load_media
from captioners.types import CaptionLabError

STAMPS = Path("/usr/share/tuxpaint/stamps")
DRAWN = {"cartoon", "symbols", "roadsigns", "flags"}


def stamps(source: Path) -> Iterator[tuple[Path, str]]:
    """Photographs below a folder with their English sentences, which stand in the first line of the text file beside
    them.
    """
    for picture in sorted(source.rglob("*.png")):
        words = picture.with_suffix(".txt")
        if words.exists() and not DRAWN & {*picture.relative_to(source).parts}:
            yield picture, words.read_text(encoding="utf-8", errors="replace").splitlines()[0].strip()


def write(source: Path, out: Path) -> int:
    """The stamps as JPEGs over white with `captions.jsonl`; returns how many there are."""
    from PIL import Image

    pairs = list(stamps(source))
    if not pairs:
        raise CaptionLabError(f"There are no stamps in {source}: install Debian's package tuxpaint-stamps-default.")
    (out / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for picture, sentence in pairs:
        name = "-".join(picture.relative_to(source).with_suffix(".jpg").parts)
        Image.fromarray(load_media(picture, "image").data).save(out / "images" / name, quality=92)
        rows.append(json.dumps({"image": name, "captions": [sentence]}, ensure_ascii=False))
    (out / "captions.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return len(rows)


def main(arguments: Sequence[str]) -> int:
    """One argument: the folder to write."""
    if len(arguments) != 1:
        print("usage: python -m captioners.evaluation.stamps OUT", file=sys.stderr)
        return 2
    return exit_code(lambda: print(f"{write(STAMPS, Path(arguments[0]))} pictures in {arguments[0]}"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Which pretrained model plays which part: hub names, pinned revisions, sizes and licences, and the file that changes
them.

Parameters were counted by building each configuration without weights (`tests/test_hub.py` counts again); licences are
those that the hub pages state. Memory is four bytes a parameter, two where a GPU holds them in half precision.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from captioners.profiles.base import ProfileError

MOST_REFERENCES = 64  # the mean of more comes no closer (assets/REPRODUCTION.md)


@dataclass(frozen=True)
class Blank:
    """What stands for no input in p(x), where a captioner was never trained without one."""

    form: Literal["", "zeros", "mean", "mixture"] = ""  # "" is the family's own
    count: int = 0  # references of a mixture; 0 is a usual number
    folder: str = ""  # where references come from; "" is our examples

    @classmethod
    def parse(cls, text: Any) -> Blank:
        """From a models file: "zeros", a folder, "mixture", "mixture:K" or "mixture:K:FOLDER"; ValueError for the
        rest.
        """
        if not isinstance(text, str) or not text:
            raise ValueError
        form, *rest = text.split(":", 2)
        if form != "mixture":
            return cls("zeros") if text == "zeros" else cls("mean", folder=text)
        count, folder = [*rest, "", ""][:2]
        if rest and not (count.isdecimal() and 1 <= int(count) <= MOST_REFERENCES):
            raise ValueError
        return cls("mixture", int(count or 0), folder)


@dataclass(frozen=True)
class Source:
    """Where a model comes from."""

    id: str  # a name on the hub, or a folder
    revision: str | None = None  # a commit on the hub
    family: str = ""  # what reads it: open_clip, transformers, diffusers, any, or ours for our own training's output
    architecture: str = ""  # open_clip's name of it, for folders that hold weights alone
    subfolder: str = ""
    weights: str = ""  # the file that holds them, where a repository has several forms or an unusual one
    millions: float = 0.0  # of parameters; 0 if not known
    # for a guided caption of 12 tokens, unscored, by method 1 for a captioner and by method 2 for a language model:
    # measured with random weights of this size on one core of a server, 0 where it was not
    seconds: float = 0.0
    licence: str = ""
    layer: int = 0  # of a text encoder: the hidden layer that is compared, 0 for the last
    blank: Blank = Blank()  # of a captioner without conditioning masking

    def size(self, role: str) -> str:
        """Parameters and memory in this role, in words."""
        on_gpu = "" if role in WHOLE else ", half of that on a GPU"
        return f"{self.millions:.0f} M parameters, about {4 * self.millions / 1000:.1f} GB{on_gpu}"


WHOLE = ("language-model", "fluency-judge", "codes")  # in full precision on a GPU too
# the first of each role is what it is without being told otherwise;
# the others are what may be chosen instead, larger ones first
ROLES: dict[str, tuple[Source, ...]] = {
    "captioner": (
        Source(
            "laion/mscoco_finetuned_CoCa-ViT-L-14-laion2B-s13B-b90k",
            "f895105fb18cf5ea3ba7a1172966e4cc0ad8d743",
            "open_clip",
            "coca_ViT-L-14",
            weights="open_clip_pytorch_model.safetensors",
            millions=638.4,
            seconds=2.6,
            licence="MIT",
        ),
        Source(
            "laion/CoCa-ViT-L-14-laion2B-s13B-b90k",
            "74207cb7fde8eafc9864451ebd332fa8e75b150f",
            "open_clip",
            "coca_ViT-L-14",
            weights="open_clip_pytorch_model.bin",
            millions=638.4,
            seconds=2.6,
            licence="MIT",
        ),
        Source(
            "laion/mscoco_finetuned_CoCa-ViT-B-32-laion2B-s13B-b90k",
            "ef0732eb039c932624eb8b867c82ab2311001b09",
            "open_clip",
            "coca_ViT-B-32",
            weights="open_clip_pytorch_model.bin",
            millions=253.6,
            seconds=0.6,
            licence="MIT",
        ),
        Source(
            "laion/CoCa-ViT-B-32-laion2B-s13B-b90k",
            "47aff38863cd40aa76d915bb04e4a3d8edf5824c",
            "open_clip",
            "coca_ViT-B-32",
            weights="open_clip_pytorch_model.bin",
            millions=253.6,
            seconds=0.6,
            licence="MIT",
        ),
        Source(
            "Salesforce/blip-image-captioning-base",
            "89b09ea1789f7addf2f6d6f0dfc4ce10ab58ef84",
            "transformers",
            weights="pytorch_model.bin",
            millions=224.0,
            seconds=1.7,
            licence="BSD-3-Clause",
        ),
        Source(
            "nlpconnect/vit-gpt2-image-captioning",
            "dc68f91c06a1ba6f15268e5b9c13ae7a7c514084",
            "transformers",
            weights="pytorch_model.bin",
            millions=239.2,
            seconds=0.9,
            licence="Apache-2.0",
        ),
        Source(
            "microsoft/git-base-coco",
            "a13141da42abd4a8cbf283601a8104265f537cee",
            "transformers",
            weights="pytorch_model.bin",
            millions=176.6,
            seconds=0.8,
            licence="MIT",
        ),
    ),
    "language-model": (
        Source(
            "openai-community/gpt2-medium",
            "6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
            "transformers",
            weights="model.safetensors",
            millions=354.8,
            licence="MIT",
        ),
        Source(
            "openai-community/gpt2",
            "607a30d783dfa663caf39e06633721c8d4cfcd7e",
            "transformers",
            weights="model.safetensors",
            millions=124.4,
            seconds=35.0,
            licence="MIT",
        ),
    ),
    "image-ranker": (
        Source(
            "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
            "1a25a446712ba5ee05982a381eed697ef9b435cf",
            "open_clip",
            "ViT-B-32",
            weights="open_clip_model.safetensors",
            millions=151.3,
            licence="MIT",
        ),
    ),
    "audio-ranker": (
        Source(
            "laion/clap-htsat-unfused",
            "8fa0f1c6d0433df6e97c127f64b2a1d6c0dcda8a",
            "transformers",
            weights="pytorch_model.bin",
            millions=153.49,
            licence="Apache-2.0",
        ),
    ),
    "image-judge": (
        Source(
            "timm/vit_base_patch32_clip_224.openai",
            "a6f597a30f7b82c51704746581f9a4e41421e878",
            "open_clip",
            "ViT-B-32-quickgelu",
            weights="open_clip_model.safetensors",
            millions=151.3,
            licence="see its page",
        ),
    ),
    "audio-judge": (
        Source(
            "laion/larger_clap_general",
            "ada0c23a36c4e8582805bb38fec3905903f18b41",
            "transformers",
            weights="pytorch_model.bin",
            millions=193.9,
            licence="Apache-2.0",
        ),
    ),
    "fluency-judge": (
        Source(
            "distilbert/distilgpt2",
            "2290a62682d06624634c1f46a6ad5be0f47f38aa",
            "transformers",
            weights="model.safetensors",
            millions=81.9,
            licence="Apache-2.0",
        ),
    ),
    "text-judge": (
        Source(
            "FacebookAI/roberta-large",
            "722cf37b1afa9454edce342e7895e588b6ff1d59",
            "transformers",
            weights="model.safetensors",
            millions=355.4,
            licence="MIT",
            layer=17,
        ),
    ),
    "codes": (
        Source(
            "microsoft/vq-diffusion-ithq",
            "3f796fb49ee559370dc638dea1d8116af131d993",
            "diffusers",
            subfolder="vqvae",
            licence="see its page",
        ),
    ),
    # may be named; without one the embedded captioner describes sound
    "audio-captioner": (),
    # what nobody has published: the output of our own training, a folder or a file;
    # without one the embedded weights play
    "audibility": (),
    "visibility": (),
    "mc-diffusion": (),
    "prefix-diffusion": (),
}
# what may be named for a role that is empty by default
SUGGESTED = {
    "audio-captioner": Source(
        "MU-NLPC/whisper-small-audio-captioning",
        "e660e78f8b320a69e44e77af5d23a99b071e12f8",
        "transformers",
        weights="pytorch_model.bin",
        millions=241.7,
        licence="CC-BY-NC-4.0",
    )
}
# what a profile takes instead of the first of a role: for a laptop with internet
PRESETS = {
    "hub": {},
    "hub-small": {"captioner": "Salesforce/blip-image-captioning-base", "language-model": "openai-community/gpt2"},
}
# the text encoder that `train audibility --profile hub` starts from
CLASSIFIER_BASE = Source(
    "distilbert/distilbert-base-uncased",
    "12040accade4e8a0f71eabdb258fecc2e7e948be",
    "transformers",
    millions=67.0,
    licence="Apache-2.0",
)
CAPTIONERS = ("captioner", "audio-captioner")  # whose family is told by what the folder holds
# our training's part → the role it plays
TRAINED = {"cfg": "captioner", "audibility": "audibility", "visibility": "visibility"} | {
    part: part for part in ("mc-diffusion", "prefix-diffusion")
}
FAMILIES = {
    "audio-captioner": "any",
    "audibility": "transformers",
    "visibility": "transformers",
    "mc-diffusion": "ours",
    "prefix-diffusion": "ours",
}


def choose(
    models: str | Path | None = None, checkpoints: tuple[str, ...] = (), preset: str = "hub"
) -> dict[str, Source]:
    """Role → source: the preset's, changed by a models file and then by our own checkpoints."""
    named = PRESETS[preset]
    chosen = {
        role: next(s for s in sources if s.id == named.get(role, sources[0].id))
        for role, sources in ROLES.items()
        if sources
    }
    if models is not None:
        chosen |= {role: _source(role, value, Path(models)) for role, value in _read(Path(models)).items()}
    for checkpoint in checkpoints:
        chosen |= _own(Path(checkpoint))
    for judge, player in (
        ("image-judge", "image-ranker"),
        ("audio-judge", "audio-ranker"),
        ("fluency-judge", "language-model"),
    ):
        if chosen[judge].id == chosen[player].id:
            raise ProfileError(
                f"{chosen[judge].id} cannot be both {judge} and {player}: a judge takes no part, so name another model."
            )
    return chosen


def smaller(role: str, source: Source) -> Source | None:
    """The next smaller choice for a role."""
    candidates = [s for s in ROLES.get(role, ()) if 0 < s.millions < (source.millions or float("inf"))]
    return max(candidates, key=lambda s: s.millions, default=None)


def _read(path: Path) -> dict[str, Any]:
    """A TOML or YAML file: role → hub id or folder, or a table with id, revision, architecture, subfolder and
    weights.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ProfileError(
            f"{path} cannot be read: give a TOML or YAML file with lines like image-ranker = NAME OR FOLDER."
        ) from None
    try:
        if path.suffix in (".yaml", ".yml"):
            import yaml

            entries = yaml.safe_load(text) or {}
        else:
            entries = tomllib.loads(text)
    except Exception as error:  # both libraries have several of their own
        raise ProfileError(
            f"{path} is not valid {'YAML' if path.suffix in ('.yaml', '.yml') else 'TOML'}: {error}"
        ) from None
    if not isinstance(entries, dict):
        raise ProfileError(f"{path} names no roles: write lines like image-ranker = NAME OR FOLDER.")
    return entries


def _source(role: str, value: Any, path: Path) -> Source:
    if role not in ROLES:
        raise ProfileError(f"{path} names the role {role!r}, which does not exist: choose from {', '.join(ROLES)}.")
    table = {"id": value} if isinstance(value, str) else value
    fields = {"id", "revision", "architecture", "subfolder", "weights", "layer", "blank"}
    if not isinstance(table, dict) or not isinstance(table.get("id"), str) or not set(table) <= fields:
        raise ProfileError(
            f"{path} has no model for {role}: give a hub name or a folder, or a table of {', '.join(sorted(fields))}."
        )
    entry: dict[str, Any] = {**table, "id": _beside(path, table["id"])}
    if "blank" in entry:
        entry["blank"] = _blank(role, entry["blank"], path)
    known = next((s for s in (*ROLES[role], SUGGESTED.get(role)) if s and s.id == entry["id"]), None)
    default = ROLES[role][0] if ROLES[role] else Source("", family=FAMILIES[role])
    kind = "any" if role in CAPTIONERS else default.family
    base = known or dataclasses.replace(
        default, revision=None, family=kind, weights="", millions=0.0, seconds=0.0, licence="", layer=0
    )
    if entry.get("revision", base.revision) != base.revision:
        base = dataclasses.replace(base, weights="")  # another commit may have them in another form
    return dataclasses.replace(base, **entry)


def _beside(path: Path, folder: str) -> str:
    """A folder is meant from where the models file stands, if it is there."""
    beside = path.parent / folder
    return str(beside) if beside.exists() else folder


def _blank(role: str, value: Any, path: Path) -> Blank:
    if role not in CAPTIONERS:
        raise ProfileError(f"{path} gives a blank for {role}: only {' and '.join(CAPTIONERS)} have one.")
    try:
        blank = Blank.parse(value)
    except ValueError:
        choices = '"zeros", a folder, "mixture", "mixture:K" or "mixture:K:FOLDER"'
        raise ProfileError(
            f"{path} has blank = {value!r} for {role}: give {choices}, K from 1 to {MOST_REFERENCES}."
        ) from None
    return dataclasses.replace(blank, folder=_beside(path, blank.folder)) if blank.folder else blank


def _own(path: Path) -> dict[str, Source]:
    """What a training wrote: one part, named by its folder or file, or a folder that holds some."""
    if not path.exists():
        raise ProfileError(
            f"There is no checkpoint {path}: give what `python -m captioners train PART --profile hub` wrote."
        )
    parts = (
        [path]
        if path.stem in TRAINED
        else sorted(p for p in path.iterdir() if p.stem in TRAINED)
        if path.is_dir()
        else []
    )
    parts = [p for p in parts if p.is_dir() or p.suffix == ".safetensors"]
    if not parts:
        raise ProfileError(
            f"{path} holds no checkpoint: give a folder or file that is called one of {', '.join(TRAINED)}."
        )
    roles = {p: TRAINED[p.stem] for p in parts}
    return {
        role: Source(str(p), family=FAMILIES.get(role, "open_clip"), architecture="coca_ViT-L-14")
        for p, role in roles.items()
    }

"""The plain data that every part of Caption Lab speaks: Media in, Settings beside it, Steps and a Result out.

Nothing here imports torch or opens a file. Every type converts to JSON and back through `to_json` / `from_json`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import math
import types as _types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

Modality = Literal["image", "audio"]
TokenState = Literal["masked", "draft", "final"]
Progress = Literal["growing", "denoising"]


class CaptionLabError(ValueError):
    """Raised for a mistake that the user can mend; its text is one sentence that says how."""


class SettingsError(CaptionLabError):
    """Raised for a setting that no control allows."""


# ---------------------------------------------------------------------------------------------- JSON, both ways


def to_json(value: Any) -> Any:
    """Dataclasses, mappings, sequences, numpy numbers and arrays → what `json.dumps` takes. Non-finite → None."""
    if hasattr(value, "__json__"):
        return value.__json__()
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [to_json(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def from_json(kind: Any, value: Any) -> Any:
    """The inverse of `to_json`, led by the type `kind` (a dataclass, or `list[X]`, `dict[K, V]`, `X | None` …)."""
    if hasattr(kind, "__from_json__"):
        return kind.__from_json__(value)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if value is None:
        return math.nan if kind is float else None
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(
            **{f.name: from_json(hints[f.name], value[f.name]) for f in dataclasses.fields(kind) if f.name in value}
        )
    if origin in (typing.Union, _types.UnionType):
        return from_json(next(a for a in args if a is not type(None)), value)
    if origin is list:
        return [from_json(args[0], v) for v in value]
    if origin is tuple:
        inner = args[:1] * len(value) if args[-1] is Ellipsis else args
        return tuple(from_json(a, v) for a, v in zip(inner, value, strict=True))
    if origin in (dict, Mapping):
        return {args[0](k): from_json(args[1], v) for k, v in value.items()}
    return kind(value) if kind in (int, float, str, bool) else value


# -------------------------------------------------------------------------------------------------------- Media


@dataclass(frozen=True, eq=False)
class Media:
    """One decoded picture or sound clip; made by `captioners.media.load_media`, never by hand.

    `data` is (height, width, 3) uint8 for a picture and (samples,) float32 in [-1, 1], mono, for sound. `band` is the
    same sound with the high tones that `data` has no room for, for models that hear them; it does not take part in
    `hash` or JSON.
    """

    kind: Modality
    data: np.ndarray
    rate: int = 0  # samples per second; 0 for a picture
    name: str = ""  # a label for people: usually the file's name
    notes: tuple[str, ...] = ()  # what was done to the input that the user should know
    band: tuple[np.ndarray, int] | None = None  # (samples, rate), where the file has a higher rate than `rate`

    @property
    def widest(self) -> tuple[np.ndarray, int]:
        """Samples and rate of a sound with all that is known of it."""
        return self.band or (self.data, self.rate)

    @cached_property
    def hash(self) -> str:
        """A name for the content: equal pixels or samples give an equal hash, whatever the file was."""
        head = f"{self.kind} {self.rate} {self.data.shape} {self.data.dtype}".encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.data).tobytes()).hexdigest()[:16]

    @property
    def seconds(self) -> float:
        """The length of a sound clip; 0 for a picture."""
        return len(self.data) / self.rate if self.rate else 0.0

    def __json__(self) -> dict[str, Any]:
        buffer = io.BytesIO()
        np.save(buffer, self.data, allow_pickle=False)
        data = base64.b64encode(buffer.getvalue()).decode()
        return {"kind": self.kind, "data": data, "rate": self.rate, "name": self.name, "notes": list(self.notes)}

    @classmethod
    def __from_json__(cls, value: dict[str, Any]) -> Media:
        data = np.load(io.BytesIO(base64.b64decode(value["data"])), allow_pickle=False)
        return cls(value["kind"], data, value["rate"], value["name"], tuple(value["notes"]))


# ------------------------------------------------------------------------------------ Controls, Spec and Settings


@dataclass(frozen=True)
class Control:
    """One knob of a method. Sliders, command-line options, API parameters and validation are all made from it."""

    name: str
    kind: Literal["number", "choice", "text", "switch"]
    label: str
    help: str  # one sentence on what it does
    default: Any
    low: float = -math.inf
    high: float = math.inf
    step: float | None = None  # a whole step makes the number whole
    choices: tuple[str, ...] = ()
    front: bool = False  # shown in front, shared by all methods that listen to it
    optional: bool = False  # None is allowed and means "decided by the method"

    def __post_init__(self) -> None:
        for name, unbounded in (("low", -math.inf), ("high", math.inf)):
            if math.isnan(getattr(self, name)):  # JSON has no infinity
                object.__setattr__(self, name, unbounded)

    def but(self, **changes: Any) -> Control:
        """A copy with some fields changed: a method's own default or help."""
        return dataclasses.replace(self, **changes)

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are allowed."""
        return self.step is not None and float(self.step).is_integer()

    @property
    def allowed(self) -> str:
        """What may be given, in words."""
        match self.kind:
            case "number":
                words = f"a{' whole' if self.whole else ''} number from {self.low:g} to {self.high:g}"
            case "choice":
                words = "one of " + ", ".join(self.choices)
            case "switch":
                words = "true or false"
            case _:
                words = "text"
        return words + (" (or 'auto')" if self.optional else "")

    def parse(self, value: Any) -> Any:
        """`value` (from Python, JSON or a command line) as this control's own type, or a SettingsError."""
        if self.optional and (value is None or value == "auto"):
            return None
        parsed = {"number": self._number, "switch": self._switch}.get(self.kind, self._text)(value)
        if parsed is None:
            raise SettingsError(f"{self.name} = {value!r} is not possible: give {self.allowed}.")
        return parsed

    def _number(self, value: Any) -> float | int | None:
        if isinstance(value, bool | np.bool_):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        if not (math.isfinite(number) and self.low <= number <= self.high):
            return None
        if self.whole:
            return int(number) if number == int(number) else None
        return number

    def _switch(self, value: Any) -> bool | None:
        words = {
            "true": True,
            "on": True,
            "yes": True,
            "1": True,
            "false": False,
            "off": False,
            "no": False,
            "0": False,
        }
        return words.get(str(value).lower())

    def _text(self, value: Any) -> str | None:
        if not isinstance(value, str) or (self.kind == "choice" and value not in self.choices):
            return None
        return value


class Settings(Mapping[str, Any]):
    """The value of every control of one method, checked; plus `forced`, {position: token}, which fixes tokens.

    Made by `Spec.settings`. Read a value as `settings["guidance_scale"]`. `traced` is no setting of the caption:
    without it a method may leave the trace and the details of its result empty, which nobody reads in a large
    evaluation.
    """

    def __init__(
        self,
        controls: tuple[Control, ...],
        values: Mapping[str, Any] = {},
        forced: Mapping[Any, str] = {},
        traced: bool = True,
    ):
        known = {c.name: c for c in controls}
        for name in values:
            if name not in known:
                raise SettingsError(f"There is no control called {name!r} here: choose from {', '.join(known)}.")
        self.controls = controls
        self.values_ = {name: control.parse(values.get(name, control.default)) for name, control in known.items()}
        self.forced = {_position(k): _token(v) for k, v in dict(forced).items()}
        self.traced = traced

    def __getitem__(self, name: str) -> Any:
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and (self.values_, self.forced) == (other.values_, other.forced)

    def __hash__(self) -> int:
        return hash((tuple(self.values_.items()), tuple(sorted(self.forced.items()))))

    def __repr__(self) -> str:
        return f"Settings({self.values_}, forced={self.forced})"

    def replace(self, forced: Mapping[Any, str] | None = None, **values: Any) -> Settings:
        """A copy with some values changed."""
        return Settings(
            self.controls, {**self.values_, **values}, self.forced if forced is None else forced, self.traced
        )

    def untraced(self) -> Settings:
        """A copy that asks for the caption alone."""
        return Settings(self.controls, self.values_, self.forced, traced=False)

    def __json__(self) -> dict[str, Any]:
        return {**to_json(self.values_), "forced": {str(k): v for k, v in self.forced.items()}}


def _position(value: Any) -> int:
    try:
        position = int(value) if float(value).is_integer() else -1
    except (TypeError, ValueError, OverflowError):
        position = -1
    if position < 0:
        raise SettingsError(
            f"forced position {value!r} is not possible: give a whole number from 0, counted in tokens."
        )
    return position


def _token(value: Any) -> str:
    if not isinstance(value, str) or not (
        value.strip() or value == " "
    ):  # a lone space is a piece too: it begins a number
        raise SettingsError(f"forced token {value!r} is not possible: give a word or a piece of one.")
    return value


@dataclass(frozen=True)
class Explanation:
    """A method, told to a visitor of the page."""

    works: str  # some five sentences
    fails: str
    citation: str  # BibTeX


@dataclass(frozen=True)
class Spec:
    """What a method declares about itself."""

    id: str
    title: str
    idea: str  # one line
    paper: str  # a link
    modalities: tuple[Modality, ...]
    controls: tuple[Control, ...]
    formula: str = ""
    # the controls that guide → the values at which they do not
    unguided: Mapping[str, Any] = field(default_factory=dict, hash=False)
    branches: tuple[str, str] = ("with input", "without")  # what the trace's cond and uncond are, in words
    card_scores: tuple[str, ...] = ()  # names of scores that its card shows beside those that every card shows
    explanation: Explanation | None = None  # without one, the page shows the words at the top of the method's file

    def settings(self, forced: Mapping[Any, str] = {}, **values: Any) -> Settings:
        """Checked settings: what is not given has this method's own default."""
        return Settings(self.controls, values, forced)

    def settings_from_json(self, value: Mapping[str, Any]) -> Settings:
        """The inverse of `to_json(settings)`."""
        values = dict(value)
        return Settings(self.controls, values, values.pop("forced", {}))

    def without_guidance(self, settings: Settings) -> Settings:
        """The same settings with all guidance off."""
        return settings.replace(**self.unguided)

    def listens_to(self, name: str) -> bool:
        """Whether this method has a control of that name."""
        return any(c.name == name for c in self.controls)


# ------------------------------------------------------------------------------------- Steps, traces and results


@dataclass(frozen=True)
class Alternative:
    """A token that could have stood here, and its log-probability."""

    token: str
    logprob: float


@dataclass(frozen=True)
class TokenTrace:
    """What the distributions said at one output position. All values are log-probabilities of the chosen token."""

    position: int
    token: str
    cond: float
    uncond: float
    guided: float
    alternatives: dict[str, list[Alternative]]  # "cond" | "uncond" | "guided" | "lm" → best first
    kl: float  # KL(cond ‖ uncond), nats
    entropy: float  # of the guided distribution, nats
    lm: float | None = None
    classifier: float | None = None
    steps: list[dict[str, float]] = field(default_factory=list)  # the same numbers along inner or denoising steps


@dataclass(frozen=True)
class StepToken:
    """One position of a caption in the making."""

    text: str
    state: TokenState
    probability: float


@dataclass(frozen=True)
class Candidate:
    """One finished caption and why it stands where it does."""

    caption: str
    score: float | None = None  # by the ranker; None when there was nothing to rank
    logprob: float | None = None  # under the distribution that it was drawn from


@dataclass(frozen=True)
class Score:
    """One number about a caption, never without the name of the encoder it came from."""

    value: float
    encoder: str = ""


@dataclass(frozen=True)
class Result:
    """A finished caption with everything needed to show, compare and reproduce it."""

    method: str
    caption: str
    candidates: list[Candidate]
    trace: list[TokenTrace]
    settings: dict[str, Any]
    seed: int
    profile: str
    weights: dict[str, str]  # part → hash of its file
    seconds: dict[str, float] = field(default_factory=dict)  # stage → wall time
    calls: dict[str, int] = field(default_factory=dict)  # model → forward passes
    scores: dict[str, Score] = field(default_factory=dict)  # added by the lab; a method never sees a judge
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # what only this method has: masked cells, diversity …


@dataclass(frozen=True)
class Step:
    """One moment of decoding; the same for a caption that grows and one that is denoised. The last holds the Result."""

    position: int
    total: int
    tokens: list[StepToken]
    trace: list[TokenTrace] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # the other candidates' texts so far
    result: Result | None = None
    progress: Progress = "growing"  # token by token, or all positions at once

    @property
    def finished(self) -> Result:
        """The result, of a step that must hold one."""
        if self.result is None:
            raise ValueError(f"This is step {self.position} of {self.total}: only the last one holds a result.")
        return self.result

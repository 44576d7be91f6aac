"""The plain data types: settings that check themselves, and JSON both ways."""

import json
import math

import numpy as np
import pytest

from captioners.media import load_media
from captioners.types import (
    Alternative,
    Candidate,
    Control,
    Media,
    Result,
    Score,
    SettingsError,
    Spec,
    Step,
    StepToken,
    TokenTrace,
    from_json,
    to_json,
)

SPEC = Spec(
    "method",
    "Method",
    "An idea.",
    "https://example.org",
    ("image",),
    (
        Control("scale", "number", "Scale", "How far.", 2.0, 0, 5, 0.1),
        Control("count", "number", "Count", "How many.", 1, 1, 64, 1),
        Control("alpha", "number", "Alpha", "Exponent.", None, -1, 3, 0.1, optional=True),
        Control("ranking", "choice", "Ranking", "By what.", "match", choices=("match", "likelihood")),
        Control("fast", "switch", "Fast", "Less work.", False),
        Control("prompt", "text", "Prompt", "Read first.", ""),
    ),
)


# ------------------------------------------------------------------------------------------------------- settings


def test_what_is_not_given_has_the_default():
    settings = SPEC.settings(count=3)
    assert dict(settings) == {"scale": 2.0, "count": 3, "alpha": None, "ranking": "match", "fast": False, "prompt": ""}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("scale", v)
            for v in ("two", "", None, math.nan, "nan", math.inf, -math.inf, -0.01, 5.01, True, np.True_, [1.0], {})
        ),
        *(("count", v) for v in (1.5, "2.5", 0, 65, False, math.nan)),
        *(("alpha", v) for v in ("none", 3.5, math.nan)),
        *(("ranking", v) for v in ("Match", "", 3, None, True)),
        *(("fast", v) for v in ("maybe", 2, None, [])),
        *(("prompt", v) for v in (3, None, b"bytes")),
    ],
)
def test_an_impossible_value_is_refused_with_name_value_and_range(name, value):
    allowed = next(c for c in SPEC.controls if c.name == name).allowed
    with pytest.raises(SettingsError) as caught:
        SPEC.settings(**{name: value})
    assert str(caught.value) == f"{name} = {value!r} is not possible: give {allowed}."


def test_the_range_is_told_in_words():
    assert [c.allowed for c in SPEC.controls] == [
        "a number from 0 to 5",
        "a whole number from 1 to 64",
        "a number from -1 to 3 (or 'auto')",
        "one of match, likelihood",
        "true or false",
        "text",
    ]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match=r"'guidance'.*scale, count, alpha, ranking, fast, prompt"):
        SPEC.settings(guidance=2)


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("scale", 0, 0.0),
        ("scale", 5, 5.0),
        ("scale", " 1.5 ", 1.5),
        ("scale", np.float32(1.5), 1.5),
        ("count", "64", 64),
        ("count", 3.0, 3),
        ("count", np.int64(7), 7),
        ("alpha", None, None),
        ("alpha", "auto", None),
        ("alpha", "-1", -1.0),
        ("ranking", "likelihood", "likelihood"),
        ("fast", "on", True),
        ("fast", "False", False),
        ("fast", 1, True),
        ("prompt", "auto", "auto"),
    ],
)
def test_a_possible_value_becomes_the_controls_own_type(name, value, parsed):
    found = SPEC.settings(**{name: value})[name]
    assert (found, type(found)) == (parsed, type(parsed))


def test_replace_changes_a_copy_and_checks_it():
    before = SPEC.settings(scale=1.5, forced={0: "a"})
    after = before.replace(count=2)
    assert (before["count"], after["count"], after["scale"], after.forced) == (1, 2, 1.5, {0: "a"})
    assert before != after
    assert before == SPEC.settings(scale="1.5", forced={"0": "a"})
    assert hash(before) == hash(SPEC.settings(scale="1.5", forced={"0": "a"}))
    with pytest.raises(SettingsError, match="count"):
        before.replace(count=0)


@pytest.mark.parametrize(
    "forced", [{-1: "a"}, {"x": "a"}, {None: "a"}, {math.nan: "a"}, {0: ""}, {0: "  "}, {0: 5}, {0: None}]
)
def test_an_impossible_forced_token_is_refused(forced):
    with pytest.raises(SettingsError, match=r"forced (position|token) .* is not possible"):
        SPEC.settings(forced=forced)


def test_forced_positions_may_be_text():
    assert SPEC.settings(forced={"2": "dog", 0: " a"}).forced == {2: "dog", 0: " a"}


# ----------------------------------------------------------------------------------------------------------- JSON


def trace(position: int) -> TokenTrace:
    alternatives = {
        "cond": [Alternative(" dog", -0.1), Alternative(" cat", -2.5)],
        "guided": [Alternative(" dog", -0.01)],
    }
    return TokenTrace(
        position, " dog", -0.1, -3.0, -0.01, alternatives, 1.2, 0.3, lm=-4.0, steps=[{"cond": -0.2}, {"cond": -0.1}]
    )


RESULT = Result(
    method="method",
    caption="a dog",
    candidates=[Candidate("a dog", 0.3, -1.5), Candidate("a cat")],
    trace=[trace(0), trace(1)],
    settings=to_json(SPEC.settings(forced={1: " dog"})),
    seed=3,
    profile="embedded",
    weights={"part": "0123"},
    seconds={"decode": 0.25},
    calls={"decoder": 7},
    scores={"clipscore": Score(1.25, "judge")},
    notes=["short"],
    details={"masked": [1, 2]},
)
STEP = Step(1, 2, [StepToken("a", "final", 0.5)], [trace(0)], ["a cat"], RESULT)


def through_json(kind, value):
    """Written as strict JSON (no NaN) and read again."""
    return from_json(kind, json.loads(json.dumps(to_json(value), allow_nan=False)))


@pytest.mark.parametrize(
    "value",
    [
        *SPEC.controls[:3],
        Alternative(" a", -1.0),
        trace(4),
        StepToken("a", "draft", 0.5),
        *RESULT.candidates,
        Score(2.0),
        RESULT,
        STEP,
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_and_back(value):
    assert through_json(type(value), value) == value


def test_settings_to_json_and_back():
    settings = SPEC.settings(scale=1.5, prompt="a | b", forced={2: " dog"})
    written = json.loads(json.dumps(to_json(settings), allow_nan=False))
    assert written["forced"] == {"2": " dog"}
    assert SPEC.settings_from_json(written) == settings


@pytest.mark.parametrize(
    "media",
    [
        load_media(np.arange(60, dtype=np.uint8).reshape(4, 5, 3), name="small.png"),
        Media("audio", np.linspace(-1, 1, 3200, dtype=np.float32), 16_000, "ramp.wav", ("loud",)),
    ],
    ids=lambda media: media.kind,
)
def test_media_to_json_and_back(media):
    back = through_json(Media, media)
    assert (back.kind, back.rate, back.name, back.notes, back.hash) == (
        media.kind,
        media.rate,
        media.name,
        media.notes,
        media.hash,
    )
    assert back.data.dtype == media.data.dtype
    np.testing.assert_array_equal(back.data, media.data)


def test_the_hash_names_the_content_alone():
    pixels = np.zeros((4, 5, 3), np.uint8)
    assert Media("image", pixels, name="a").hash == Media("image", pixels.copy(), name="b").hash
    assert Media("image", pixels).hash != Media("image", pixels.reshape(5, 4, 3)).hash
    assert Media("image", pixels).hash != Media("image", pixels + 1).hash


def test_numbers_that_json_does_not_know_become_null():
    odd = {
        "a": -math.inf,
        "b": np.float32("nan"),
        "c": [math.inf, np.int64(3), np.float64(0.5)],
        4: np.array([1.0, np.nan]),
    }
    assert to_json(odd) == {"a": None, "b": None, "c": [None, 3, 0.5], "4": [1.0, None]}
    assert math.isnan(through_json(Alternative, Alternative("a", -math.inf)).logprob)
    assert through_json(Candidate, Candidate("a", math.nan)).score is None


# ------------------------------------------------------------------------------------------------- odd numbers


def test_a_number_beyond_floats_is_refused():
    with pytest.raises(SettingsError, match="scale"):
        SPEC.settings(scale=10**400)


def test_an_infinite_forced_position_is_refused():
    with pytest.raises(SettingsError, match="forced position"):
        SPEC.settings(forced={math.inf: "a"})


def test_half_a_forced_position_is_refused():
    with pytest.raises(SettingsError, match="forced position"):
        SPEC.settings(forced={1.5: "a"})


def test_a_control_without_bounds_survives_json():
    free = Control("shift", "number", "Shift", "Anything.", 0.0)
    assert through_json(Control, free).parse(3) == 3

"""Controls as Gradio components, and what visitors set as the settings of one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from captioners import controls
from captioners.types import Control, Settings, Spec

SHARED_SEED = "seed"
COMMON = {c.name: c for c in vars(controls).values() if isinstance(c, Control)}
STRONG = {"guidance_scale": 4.0}


def front_controls(specs: Sequence[Spec]) -> dict[str, Control]:
    """The shared controls by name, as the first method that listens declares them, but wide enough for all that do.

    What a method says of one is about that method: the words of `controls` hold for all.
    """
    by_name: dict[str, Control] = {}
    for control in (c for spec in specs for c in spec.controls if c.front):
        first = by_name.get(control.name, control)
        words = COMMON.get(control.name, first).help
        by_name[control.name] = first.but(
            low=min(first.low, control.low), high=max(first.high, control.high), help=words
        )
    return by_name


def own_controls(spec: Spec) -> list[Control]:
    """What stands under "More" on the method's card."""
    return [c for c in spec.controls if not c.front and c.name != SHARED_SEED]


def component(control: Control, note: str = "") -> gr.components.Component:
    """The component that sets a control."""
    words = {
        "label": control.label,
        "info": f"{control.help} {note}".strip(),
        "interactive": True,
        "elem_classes": f"cl-set-{control.name}",
    }
    match control.kind:
        case "number" if control.optional:
            return gr.Number(
                control.default,
                placeholder="auto",
                minimum=control.low,
                maximum=control.high,
                step=control.step,
                **words,
            )
        case "number":
            return gr.Slider(control.low, control.high, control.default, step=control.step, **words)
        case "choice":
            return gr.Dropdown(list(control.choices), value=control.default, **words)
        case "switch":
            return gr.Checkbox(control.default, **words)
    return gr.Textbox(control.default, max_lines=2, **words)


def moved(component: gr.components.Component) -> Any:
    """The event that says a visitor has finished setting it."""
    return (
        component.release
        if isinstance(component, gr.Slider)
        else component.submit
        if isinstance(component, gr.Textbox)
        else component.input
    )


def gather(
    spec: Spec,
    front: Mapping[str, Any],
    touched: Sequence[str],
    own: Mapping[str, Any],
    seed: float,
    forced: Mapping[int, str] = {},
) -> Settings:
    """Checked settings of one method.

    A shared control counts once a visitor has moved it; until then the method's own default does.
    """
    known = {c.name: c for c in spec.controls}
    values = {
        name: _within(known[name], value) for name, value in front.items() if name in touched and name in known
    } | dict(own)
    if spec.listens_to(SHARED_SEED):
        values[SHARED_SEED] = seed
    return spec.settings(forced=forced, **values)


def _within(control: Control, value: Any) -> Any:
    """A shared slider may reach further than one method goes; that method takes its own end."""
    return min(max(value, control.low), control.high) if control.kind == "number" else value


def presets(specs: Sequence[Spec]) -> dict[str, dict[str, Any]]:
    """Preset → the shared controls that it moves; "paper" moves none, so every method has its own default."""
    front, off = front_controls(specs), {name: value for spec in specs for name, value in spec.unguided.items()}
    return {
        name: {k: v for k, v in values.items() if k in front}
        for name, values in (("off", off), ("paper", {}), ("strong", STRONG))
    }


def own_preset(spec: Spec, preset: str) -> dict[str, Any]:
    """The method's own controls that a preset sets: one of them may decide at which value of a shared one guidance
    is off.
    """
    own = {c.name for c in own_controls(spec)}
    return {name: value for name, value in spec.unguided.items() if name in own} if preset == "off" else {}

"""The documented endpoints, /compare and /caption: made from the methods' controls, for programs and for MCP
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

import gradio as gr

from captioners.lab import choose_methods
from captioners.types import CaptionLabError, Control, Result, SettingsError, Spec, to_json
from captioners.ui.runtime.hosting import HEAVY
from captioners.ui.runtime.studio import Studio

MEDIA = "media: The file to caption: a picture or a sound clip."
FORCED = 'forced: Tokens that are fixed, as {"position": "token"}; positions count from 0.'
RETURNS = (
    '{"results": [...]}, one for each method: '
    "caption, candidates, scores, trace, seconds, settings, seed, profile, weights."
)


def add_endpoints(studio: Studio, specs: Sequence[Spec]) -> None:
    """Inside a Blocks: two endpoints that need no page."""
    controls: dict[str, Control] = {}
    for spec in specs:
        controls |= {c.name: c for c in spec.controls if c.name not in controls}
    ids = [s.id for s in specs]
    several = gr.CheckboxGroup(ids, value=[], label="methods", visible=False)
    one = gr.Dropdown(ids, value=ids[0], label="method", visible=False)
    described = f"methods: Which methods to run; none means all that can caption this kind of file: {', '.join(ids)}."
    _endpoint(
        studio,
        "compare",
        "Caption one picture or sound with several guided captioning methods.",
        several,
        described,
        controls,
    )
    _endpoint(
        studio,
        "caption",
        "Caption one picture or sound with one method.",
        one,
        f"method: One of {', '.join(ids)}.",
        controls,
    )


def _endpoint(studio: Studio, name: str, words: str, chosen: Any, described: str, controls: dict[str, Control]) -> None:
    file = gr.File(label="media", visible=False)
    fields = [_field(c) for c in controls.values()]
    forced = gr.JSON(label="forced", visible=False)
    # Gradio's own is no valid schema for MCP
    forced.api_info = lambda: {"type": "object", "additionalProperties": {"type": "string"}}
    answer = gr.JSON(label="results", visible=False)
    function = _function(studio, described.partition(":")[0], list(controls))
    lines = [
        MEDIA,
        described,
        *(
            f"{c.name}: {c.help} {c.allowed.capitalize()}; left out, each method's own default."
            for c in controls.values()
        ),
    ]
    function.__doc__ = "\n".join(
        [words, "", "Parameters:", *(f"    {line}" for line in (*lines, FORCED)), "Returns:", f"    {RETURNS}"]
    )
    function.__name__ = name
    gr.Button(visible=False).click(
        function,
        [file, chosen, *fields, forced],
        answer,
        api_name=name,
        api_visibility="public",
        show_progress="hidden",
        **HEAVY,
    )


def _field(control: Control) -> gr.components.Component:
    """A typed parameter without a value: what is not given is the method's own affair."""
    words = {"label": control.name, "visible": False}
    match control.kind:
        case "number":
            return gr.Number(None, precision=0 if control.step == 1 else None, **words)
        case "choice":
            return gr.Dropdown(list(control.choices), value=None, **words)
        case "switch":
            return gr.Checkbox(None, **words)
    return gr.Textbox(None, **words)


def _function(studio: Studio, parameter: str, names: list[str]) -> Callable[..., dict[str, Any]]:
    def answer(media: str, chosen: str | list[str], *values: Any) -> dict[str, Any]:
        *settings, forced = values
        settings_given = {
            name: value for name, value in zip(names, settings, strict=True) if value is not None and value != ""
        }
        try:
            return {
                "results": to_json(
                    _results(
                        studio, media, [chosen] if isinstance(chosen, str) else chosen, settings_given, forced or {}
                    )
                )
            }
        except CaptionLabError as error:
            raise gr.Error(str(error), print_exception=False) from error

    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        Parameter("media", kind),
        *(Parameter(name, kind, default=None) for name in (parameter, *names, "forced")),
    ]
    answer.__dict__["__signature__"] = Signature(parameters)
    return answer


def _results(
    studio: Studio, path: str, methods: list[str], values: dict[str, Any], forced: dict[str, str]
) -> list[Result]:
    media = studio.media(path)
    specs = choose_methods(media.kind, methods)
    for name in values:
        if not any(s.listens_to(name) for s in specs):
            raise SettingsError(
                f"There is no control called {name!r} in {', '.join(s.id for s in specs)}: leave it out."
            )
    settings = {s.id: s.settings(forced=forced, **{k: v for k, v in values.items() if s.listens_to(k)}) for s in specs}
    results = []
    for answer in studio.each(media, list(settings.items())):
        if isinstance(answer, CaptionLabError):
            raise answer
        results.append(studio.explain(media, answer, waits=True))
    return results

"""Text made here becomes a file in the visitor's downloads: the browser writes it, so nothing is left on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from captioners.types import CaptionLabError


def save_button(
    label: str, name: str, make: Callable[..., str], inputs: Any, elem_id: str, kind: str = "text/plain"
) -> gr.Button:
    """A button that downloads what `make` returns, text, or bytes in base64 if `kind` is no text; "" is nothing yet,
    which is told.
    """

    def text(*values: Any) -> str:
        try:
            content = make(*values)
        except CaptionLabError as error:
            raise gr.Error(str(error), print_exception=False) from error
        if not content:
            raise gr.Error("There is nothing to download yet: run it first.", print_exception=False)
        return content

    carried = gr.Textbox(visible="hidden", label=name)
    button = gr.Button(label, size="sm", elem_id=elem_id)
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    button.click(text, inputs, carried, **quiet).success(None, carried, None, js=_script(name, kind), **quiet)
    return button


def _script(name: str, kind: str) -> str:
    expression = "text" if kind.startswith("text/") else "Uint8Array.from(atob(text), (c) => c.charCodeAt(0))"
    return (
        "(text) => { const link = document.createElement('a');"
        f" link.href = URL.createObjectURL(new Blob([{expression}], {{type: '{kind}'}})); link.download = '{name}'; "
        "link.click();"
        " setTimeout(() => URL.revokeObjectURL(link.href), 1000); }"
    )

"""The left side of Compare: the input with its examples, and the controls that methods share."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from captioners.types import Spec
from captioners.ui.components import examples, knobs


class ControlPanel:
    """The components of the panel; `compare` wires them."""

    def __init__(self, specs: list[Spec]):
        self.specs = specs
        self.controls = knobs.front_controls(specs)
        self._input()
        self._actions()
        self.front = {name: knobs.component(control, self._listeners(name)) for name, control in self.controls.items()}
        with gr.Row(elem_classes="cl-seed"):
            self.seed = gr.Number(
                0, label="Seed", precision=0, minimum=0, maximum=2**31 - 1, min_width=80, interactive=True
            )
            self.dice = gr.Button("⚄ Roll", size="sm", min_width=60, elem_id="cl-dice")
        choices = [(s.title, s.id) for s in specs]
        self.methods = gr.CheckboxGroup(
            choices, value=[s.id for s in specs], label="Methods", interactive=True, elem_id="cl-methods"
        )

    def _input(self) -> None:
        with gr.Tabs(elem_classes="cl-kinds") as self.kinds:
            with gr.Tab("Picture", id="image") as picture_tab:
                self.picture = gr.Image(
                    type="filepath",
                    image_mode=None,
                    sources=["upload", "clipboard", "webcam"],
                    label="Picture",
                    height=135,
                    buttons=[],
                    alt_text="the picture that is captioned",
                    elem_id="cl-picture",
                )
                gr.Examples(
                    [[p] for p in examples.PICTURES],
                    self.picture,
                    label="Examples",
                    examples_per_page=len(examples.PICTURES),
                    api_visibility="private",
                )
            with gr.Tab("Sound", id="audio") as sound_tab:
                self.sound = gr.Audio(
                    type="filepath", sources=["upload", "microphone"], label="Sound", buttons=[], elem_id="cl-sound"
                )
                names = [Path(p).stem for p in examples.SOUNDS]
                gr.Examples(
                    [[p] for p in examples.SOUNDS],
                    self.sound,
                    label="Examples",
                    example_labels=names,
                    examples_per_page=len(names),
                    api_visibility="private",
                )
        self.inputs = ((self.picture, picture_tab, examples.PICTURES[0]), (self.sound, sound_tab, examples.SOUNDS[0]))

    def _actions(self) -> None:
        with gr.Row(elem_classes="cl-actions"):
            self.run = gr.Button("Caption", variant="primary", elem_id="cl-run", min_width=80)
            self.stop = gr.Button("Stop", elem_id="cl-stop", min_width=60)
        with gr.Row(elem_classes="cl-presets"):
            self.presets = {
                name: gr.Button(name.capitalize(), size="sm", min_width=50, elem_id=f"cl-{name}")
                for name in knobs.presets(self.specs)
            }
            self.reset = gr.Button("Reset", size="sm", min_width=50, elem_id="cl-reset")

    def _listeners(self, name: str) -> str:
        listening = [s.title for s in self.specs if s.listens_to(name)]
        return "" if len(listening) == len(self.specs) else f"Heard by {', '.join(listening)}."

"""The controller behind one method's card: streams a caption, forks it at a word, answers the slider from what was
decoded ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gradio as gr

from captioners.types import CaptionLabError, Media, Result, Settings, SettingsError, Spec, Step
from captioners.ui.components import knobs
from captioners.ui.rendering.badges import Scale
from captioners.ui.rendering.card import body_html, message_html, numbers_html
from captioners.ui.rendering.plots import trace_figure
from captioners.ui.rendering.steps import is_denoised
from captioners.ui.runtime.studio import Studio

FRAME_SECONDS = (
    0.1  # seconds between two pictures of a caption in the making: smooth enough, and the models keep the processor
)
LADDER_SIZE = 11  # values of the guidance scale that are decoded ahead
AHEAD_SECONDS = 12.0  # seconds that decoding ahead may take one by one; in one batch it takes a fraction
PAUSE_SECONDS = 0.3  # seconds between two chances to stop what is decoded ahead
SCALE = "guidance_scale"

Runs = tuple[Result, Result]  # guided, unguided
CardUpdate = tuple[Any, Any, Any, Any]  # body, plot, numbers, runs


class CardController:
    """The events of one card.

    Their inputs are: source, touched, seed, then the shared and the method's own controls.
    """

    def __init__(self, studio: Studio, spec: Spec, front: Mapping[str, Any]):
        self.studio, self.spec, self.front = studio, spec, list(front)
        self.own = [c.name for c in knobs.own_controls(spec)]

    def show(self, source: str | None, touched: tuple[str, ...], seed: float, *values: Any) -> Iterator[CardUpdate]:
        """The caption of what is set now."""
        yield from self._stream(source, lambda: self._settings(touched, seed, values))

    def fork(
        self, event: gr.EventData, runs: Runs, source: str | None, touched: tuple[str, ...], seed: float, *values: Any
    ) -> Iterator[CardUpdate]:
        """The caption that goes on from another word: what stands before it is kept, or, if it is denoised, all that
        was chosen before.
        """
        if is_denoised(runs[0]):
            kept = {int(position): token for position, token in runs[0].settings.get("forced", {}).items()}
        else:
            kept = {t.position: t.token for t in runs[0].trace[: event.position]}
        forced = {**kept, event.position: event.token}
        yield from self._stream(source, lambda: self._settings(touched, seed, values, forced))

    def explain(self, runs: Runs | None, source: str | None) -> tuple[Any, Any]:
        """Where the shown caption's words come from: found out once it is there, when nobody waits for another."""
        if not runs or not source:
            return gr.skip(), gr.skip()
        media = self.studio.media(source)
        explained = self.studio.explain(media, runs[0])
        return (
            (gr.skip(), gr.skip())
            if explained is runs[0]
            else (numbers_html(self.spec, explained, media), (explained, runs[1]))
        )

    def decode_ahead(
        self, runs: Runs | None, source: str | None, touched: tuple[str, ...], seed: float, *values: Any
    ) -> Iterator[None]:
        """A ladder of guidance scales for the slider, nearest first: one batch, or one by one and fewer where a
        method is slow.
        """
        if not runs:
            return
        chosen, media, seconds = (
            self._settings(touched, seed, values),
            self.studio.media(source),
            sum(runs[0].seconds.values()),
        )
        ladder = [_at_scale(chosen, s) for s in sorted(self._ladder(), key=lambda s: abs(s - chosen[SCALE]))]
        affordable = ladder[: int(AHEAD_SECONDS / max(seconds, 1e-3))]
        shown = time.monotonic()
        for batch in [affordable] if affordable == ladder else [[s] for s in affordable]:
            for _ in self.studio.ahead(media, self.spec.id, batch):
                if time.monotonic() - shown > PAUSE_SECONDS:  # here Gradio may end it
                    shown = time.monotonic()
                    yield

    def preview(self, source: str | None, touched: tuple[str, ...], seed: float, *values: Any) -> CardUpdate:
        """While the guidance slider is dragged: the nearest scale that has been decoded ahead, or nothing."""
        if not source:
            return _skip()
        chosen, media = self._settings((*touched, SCALE), seed, values), self.studio.media(source)
        ladder = self._ladder()
        reach = 0.75 * (ladder[1] - ladder[0])
        for scale in sorted(
            (s for s in {chosen[SCALE], *ladder} if abs(s - chosen[SCALE]) <= reach),
            key=lambda s: abs(s - chosen[SCALE]),
        ):
            nearby = _at_scale(chosen, scale)
            if steps := self.studio.known(media, self.spec.id, [nearby, self.spec.without_guidance(nearby)]):
                return self._finished(media, *steps)
        return _skip()

    def _settings(
        self, touched: tuple[str, ...], seed: float, values: tuple[Any, ...], forced: Mapping[int, str] = {}
    ) -> Settings:
        front, own = values[: len(self.front)], values[len(self.front) :]
        return knobs.gather(
            self.spec,
            dict(zip(self.front, front, strict=True)),
            touched,
            dict(zip(self.own, own, strict=True)),
            seed or 0,
            forced,
        )

    def _stream(self, source: str | None, settings: Callable[[], Settings]) -> Iterator[CardUpdate]:
        """The card at every moment. What a visitor can mend is said on the card or beside it."""
        shown = 0.0
        try:
            media, chosen = self.studio.media(source), settings()
            for guided, plain in self.studio.stream(media, self.spec.id, [chosen, self.spec.without_guidance(chosen)]):
                if guided.result and plain.result:
                    yield self._finished(media, guided, plain)
                elif time.monotonic() - shown > FRAME_SECONDS:
                    shown = time.monotonic()
                    yield body_html(self.spec, guided, plain), gr.skip(), gr.skip(), gr.skip()
        except SettingsError as error:
            gr.Warning(str(error), title=self.spec.title)
            yield _skip()
        except CaptionLabError as error:
            yield message_html(str(error)), None, "", None

    def _finished(self, media: Media, guided: Step, plain: Step) -> CardUpdate:
        judges = self.studio.lab.judges(media.kind)
        scale = Scale(
            judges.matcher.calibration if judges.matcher else None,
            judges.fluency.human.get(media.kind) if judges.fluency else None,
        )
        body = body_html(self.spec, guided, plain, scale)
        result = guided.finished
        figure = trace_figure(self.spec, result) if result.trace else None
        return body, figure, numbers_html(self.spec, result, media), (result, plain.finished)

    def _ladder(self) -> list[float]:
        scale = next(c for c in self.spec.controls if c.name == SCALE)
        return [round(scale.low + i * (scale.high - scale.low) / (LADDER_SIZE - 1), 2) for i in range(LADDER_SIZE)]


def _at_scale(settings: Settings, scale: float) -> Settings:
    changed: dict[str, Any] = {SCALE: scale}
    return settings.replace(**changed)


def _skip() -> CardUpdate:
    return gr.skip(), gr.skip(), gr.skip(), gr.skip()

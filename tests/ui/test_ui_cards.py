"""What a card shows, from results alone: captions, badges, tables, figures, steps."""

import dataclasses
import json
import math
import re
from html import unescape
from types import SimpleNamespace

import fakes
import pytest
from made_up import SPEC, finished, result, trace

from captioners.lab import Lab
from captioners.profiles.base import Calibration
from captioners.types import Result, Score, Step, StepToken
from captioners.ui.components import examples, knobs
from captioners.ui.components.card_controller import CardController
from captioners.ui.rendering.badges import Scale, badges_html
from captioners.ui.rendering.caption import caption_html
from captioners.ui.rendering.card import body_html, head_html, numbers_html, progress_words
from captioners.ui.rendering.plots import comparison_figure, trace_figure
from captioners.ui.rendering.tables import comparison_table, trace_table
from captioners.ui.rendering.tint import legend, tint
from captioners.ui.runtime.studio import Studio

# ------------------------------------------------------------------------------------------------------------- drawing


def test_a_tint_tells_direction_by_hue_and_size_by_strength():
    assert tint(1.0)[0] == "cl-for"
    assert tint(-1.0)[0] == "cl-against"
    assert tint(math.nan) == tint(0.0)
    strengths = [float(tint(d)[1].removeprefix("--tint:")) for d in (0.5, 2, 4, 40)]
    assert strengths == sorted(strengths)
    assert strengths[-1] == strengths[-2]
    assert "more likely" in legend()


def test_every_token_state_is_drawn_and_what_the_model_wrote_is_escaped():
    tokens = [StepToken(" a", "final", 0.9), StepToken(" <b>", "draft", 0.5), StepToken("", "masked", 0.0)]
    html = caption_html("one", Step(1, 3, tokens))
    assert all(f"cl-{state}" in html for state in ("final", "draft", "masked"))
    assert "<b>" not in html
    assert "<button" not in html  # nothing to fork while it is being made


def test_a_finished_caption_offers_alternatives_but_not_the_end_or_the_word_itself():
    html = caption_html("one", finished(result()))
    assert html.count("popovertarget") == 2
    assert 'data-position="1" data-token=" cat">' in html
    assert html.count("disabled") == 4  # the chosen word and the end, at both positions
    assert "difference +3.50" in html


def test_word_pieces_are_joined():
    html = caption_html(
        "one",
        Step(
            2,
            2,
            [StepToken(" sun", "final", 1), StepToken("set", "final", 1)],
            [trace(0, " sun", -1, -1), trace(1, "set", -1, -1)],
        ),
    )
    assert "</span><span" in html
    assert html.count("cl-joined") == 1


def test_badges_carry_change_scale_and_encoder():
    html = badges_html("one", result(clip=1.2), result(clip=1.0), Scale(Calibration(random=0.2, human=1.2), 42.0))
    assert "▲ 0.20" in html
    assert "100 % of the way" in html
    assert "captions measure 42 on average" in html
    assert "judge-1" in html
    assert "lm-1" in html
    assert "0.25" in html


def test_a_result_without_judges_has_fewer_badges():
    bare = Result("one", "a", [], [], {}, 0, "fake", {})
    assert "CLIPScore" not in badges_html("one", bare, bare)


def test_a_method_s_own_scores_have_badges_on_its_card_alone():
    def heard(value: float) -> Result:
        made = result()
        return dataclasses.replace(made, scores={**made.scores, "audibility": Score(value, "ears-1")})

    with_badge = dataclasses.replace(SPEC, card_scores=("audibility", "visibility"))
    shown, hidden = (body_html(spec, finished(heard(0.9)), finished(heard(0.4))) for spec in (with_badge, SPEC))
    assert "audible" in shown and "▲ 0.50" in shown and "ears-1" in shown and "visible" not in shown
    assert "audible" not in hidden


def test_a_card_says_what_unguided_means_and_which_settings_are_not_as_they_come():
    html = body_html(SPEC, finished(result(temperature=0.5, alpha=None)), finished(result("a pet")))
    assert 'title="The same with Guidance scale γ 1, LM weight w 0, Exponent auto"' in html
    assert "Temperature 0.5" in html and "Exponent" not in html.partition("cl-used")[2]
    assert "Temperature" not in body_html(SPEC, finished(result()), finished(result("a pet")))


def test_a_card_shows_both_captions_and_the_values_used(picture):
    made, plain = result(), result("a pet")
    html = head_html(SPEC) + body_html(SPEC, finished(made), finished(plain)) + numbers_html(SPEC, made, picture)
    assert "Method &lt;One&gt;" in html
    assert "a <s>pet</s>" in html
    assert "Guidance scale γ 2" in html
    assert "2 candidates" in html
    assert "a &lt;note&gt;" in html
    forked = result(forced={"0": " a", "1": " cat"})
    assert "forked at “cat”" in body_html(SPEC, finished(forked), finished(plain))
    assert "says the same" in body_html(SPEC, finished(made), finished(made))
    assert "says the same" not in html


def test_a_card_in_the_making_says_how_far_it_is(picture):
    one = Step(1, 20, [StepToken(" a", "final", 0.9)])
    assert "token 1 of at most 20" in body_html(SPEC, one, one)
    denoising, *_ = fakes.Denoiser(None).stream(picture, fakes.Denoiser.spec.settings())
    assert progress_words(denoising) == "step 1/4 · 2 candidates"
    _, moving, *_ = fakes.Mover(None).stream(picture, fakes.Mover.spec.settings())
    assert progress_words(moving) == "token 2, step 4/4"


def test_tables_say_what_the_figures_show():
    made = result()
    assert trace_table(SPEC, made.trace).count("<tr>") == 4
    assert "−0.50" in trace_table(SPEC, made.trace)
    figure = trace_figure(SPEC, made)
    assert [t.name for t in figure.data[:3]] == ["with input", "without", "guided"]
    assert list(figure.data[-1].y)[:2] == pytest.approx([0.1, 3.5])
    assert "cat" in figure.data[0].text[0]
    assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"
    rows = [(SPEC, made, result(clip=1.0))]
    assert comparison_table(rows).count("a &lt;dog&gt;") == 2
    assert list(comparison_figure(rows).data[0].y) == [1.0, 1.2]


# --------------------------------------------------------------------------------------------------------------- steps


def test_a_denoised_caption_has_a_heatmap_a_slider_and_the_same_numbers_in_a_table(picture):
    made = fakes.Denoiser(None).caption(picture)
    heat = trace_figure(fakes.Denoiser.spec, made).data[-1]
    assert heat.type == "heatmap"
    assert len(heat.z) == 4
    assert list(heat.z[1]) == pytest.approx([math.exp(-1)] * 6, abs=1e-4)
    assert "masked" in heat.text[0][5]
    html = numbers_html(fakes.Denoiser.spec, made, picture)
    frames = json.loads(unescape(re.search('data-frames="(.*?)"', html)[1]))
    assert [step for step, _ in frames] == [1, 2, 3, 4]
    assert [state for _, state, _ in frames[0][1]] == ["final", "final", "draft", "masked", "masked", "masked"]
    assert frames[-1][1][0] == [" a", "final", 0.04]  # (cond − uncond = 0.25 nats of 4) of 0.6
    assert 'type="range"' in html
    assert "<td>37</td>" in html
    assert "Variety: distinct 0.80" in html


def test_a_long_denoising_is_thinned_and_keeps_its_ends(picture):
    made = fakes.Denoiser(None).caption(picture, fakes.Denoiser.spec.settings(num_steps=200))
    heat = trace_figure(fakes.Denoiser.spec, made).data[-1]
    assert (len(heat.y), heat.y[0], heat.y[-1]) == (50, 1, 200)
    assert "200 of 200" in numbers_html(fakes.Denoiser.spec, made, picture)


def test_masked_cells_lie_over_the_picture(picture, sound):
    html = numbers_html(fakes.Denoiser.spec, fakes.Denoiser(None).caption(picture), picture)
    assert "2 of 6 cells masked" in html
    assert '<rect x="1" y="0"' in html
    assert '<rect x="2" y="1"' in html
    assert "data:image/jpeg" in html
    heard = numbers_html(fakes.Denoiser.spec, fakes.Denoiser(None).caption(sound), sound)
    assert "2 of 20 cells masked" in heard
    assert "data:image/jpeg" not in heard


def test_what_the_codes_hold_is_shown_under_the_masked_cells(picture):
    made = fakes.Denoiser(None).caption(picture)
    assert "What the codes hold" not in numbers_html(fakes.Denoiser.spec, made, picture)
    told = dataclasses.replace(made, details={**made.details, "seen": "data:image/png;base64,AAAA"})
    html = numbers_html(fakes.Denoiser.spec, told, picture)
    assert 'href="data:image/png;base64,AAAA"' in html and "What the codes hold" in html
    assert html.count('<rect x="1" y="0"') == 2


def test_a_moved_context_has_its_losses_along_the_steps(picture):
    made = fakes.Mover(None).caption(picture)
    figure = trace_figure(fakes.Mover.spec, made)
    curves = {t.name: t for t in figure.data}
    assert {"moved", "kept", "loss", "relevance", "classifier", "fluency"} <= set(curves)
    assert list(curves["loss"].y)[:6] == [4.0, 3.0, 2.0, 1.0, None, 4.0]
    assert list(curves["loss"].x)[:4] == sorted(curves["loss"].x[:4])
    assert "Weighted losses" in numbers_html(fakes.Mover.spec, made, picture)
    plain = fakes.Mover(None).caption(picture, fakes.Mover.spec.settings(guidance_scale=1))
    assert "loss" not in {t.name for t in trace_figure(fakes.Mover.spec, plain).data}


def test_a_fork_keeps_what_stands_before_it_or_clamps_the_position_alone(monkeypatch):
    fakes.use_fakes(monkeypatch, fakes.Denoiser, fakes.Mover)
    studio = Studio(lambda: Lab(fakes.profile()))
    for method, forced in ((fakes.Denoiser, {"2": " bird"}), (fakes.Mover, {"0": " a", "1": " dog", "2": " bird"})):
        player = CardController(studio, method.spec, {})
        values = [c.default for c in knobs.own_controls(method.spec)]
        *_, shown = player.show(examples.PICTURES[0], (), 0, *values)
        *_, forked = player.fork(
            SimpleNamespace(position=2, token=" bird"), shown[3], examples.PICTURES[0], (), 0, *values
        )
        assert forked[3][0].settings["forced"] == forced


@pytest.mark.parametrize("method", [None, fakes.Denoiser, fakes.Mover])
def test_the_figure_that_plotly_does_not_check_would_pass_its_check(method, picture):
    import plotly.graph_objects as go

    made = method(None).caption(picture) if method else result()
    go.Figure(json.loads(trace_figure(method.spec if method else SPEC, made).to_json()))

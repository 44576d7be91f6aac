"""What the page draws, from results alone: captions, badges, tables, figures, settings, links; and the studio that keeps results."""

import dataclasses
import json
import math
import re
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from html import escape, unescape
from types import SimpleNamespace

import fakes
import pytest

from captioners import registry
from captioners.controls import GUIDANCE_SCALE, LM_WEIGHT, NUM_CANDIDATES, SEED, TEMPERATURE, number
from captioners.lab import Lab
from captioners.media import MediaError
from captioners.profiles.base import Calibration
from captioners.types import Alternative, Candidate, CaptionLabError, Result, Score, SettingsError, Spec, Step, StepToken, TokenTrace
from captioners.ui import examples, knobs, share
from captioners.ui.about import about_html
from captioners.ui.badges import Scale, badges_html
from captioners.ui.batch import batch_csv, batch_jsonl, batch_table, caption_files, count_files
from captioners.ui.caption import caption_html
from captioners.ui.card import body_html, head_html, numbers_html, progress_words
from captioners.ui.hands import HANDS
from captioners.ui.player import BUDGET, Player
from captioners.ui.plots import comparison_figure, trace_figure
from captioners.ui.stories import STORIES
from captioners.ui.studio import Studio, unguided
from captioners.ui.sweep import Swept, spread, sweep_csv, sweep_figure, sweep_json, sweep_table
from captioners.ui.tables import comparison_table, trace_table
from captioners.ui.tint import legend, tint
from captioners.ui.vote import judged, tally_html, unmasked

ALPHA = number("alpha", "Exponent", "Weight.", None, 0, 5, 0.1, optional=True)
SPEC = Spec("one", "Method <One>", "An idea.", "https://example.org", ("image",), (GUIDANCE_SCALE, LM_WEIGHT, ALPHA, TEMPERATURE, SEED))
OTHER = Spec("two", "Two", "Another.", "https://example.org", ("image",), (GUIDANCE_SCALE, NUM_CANDIDATES.but(default=8), SEED))


def trace(position: int, token: str, cond: float, uncond: float) -> TokenTrace:
    options = [Alternative(token, cond), Alternative(" cat", -2.0), Alternative("<eos>", -3.0)]
    return TokenTrace(position, token, cond, uncond, cond, {"guided": options, "cond": options}, 0.5, 1.0)


def result(caption: str = "a <dog>", clip: float = 1.2, **settings) -> Result:
    entries = [trace(0, " a", -0.1, -0.2), trace(1, " <dog>", -0.5, -4.0), trace(2, "<eos>", -0.1, math.nan)]
    scores = {"clipscore": Score(clip, "judge-1"), "perplexity": Score(20.0, "lm-1"), "words": Score(2.0)}
    return Result(
        "one", caption, [Candidate(caption, 0.5, -1.0), Candidate("a cat", 0.4, -2.0)], entries,
        {"guidance_scale": 2.0, "seed": 0, **settings}, 0, "fake", {}, {"decode": 0.25}, {}, scores, ["a <note>"],
    )  # fmt: skip


def finished(made: Result) -> Step:
    tokens = [StepToken(t.token, "final", 0.9) for t in made.trace if t.token != "<eos>"]
    return Step(2, 2, tokens, made.trace, result=made)


# ----------------------------------------------------------------------------------------------------------- drawing


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
        Step(2, 2, [StepToken(" sun", "final", 1), StepToken("set", "final", 1)], [trace(0, " sun", -1, -1), trace(1, "set", -1, -1)]),
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


def test_a_card_shows_both_captions_and_the_values_used(picture):
    made, plain = result(), result("a pet")
    html = head_html(SPEC) + body_html(SPEC, finished(made), finished(plain)) + numbers_html(SPEC, made, picture)
    assert "Method &lt;One&gt;" in html
    assert "a pet" in html
    assert "Guidance scale γ 2" in html
    assert "2 candidates" in html
    assert "a &lt;note&gt;" in html
    forked = result(forced={"0": " a", "1": " cat"})
    assert "forked at “cat”" in body_html(SPEC, finished(forked), finished(plain))


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


# ------------------------------------------------------------------------------------------------------------- steps


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
        player = Player(studio, method.spec, {})
        values = [c.default for c in knobs.own_controls(method.spec)]
        *_, shown = player.show(examples.PICTURES[0], (), 0, *values)
        *_, forked = player.fork(SimpleNamespace(position=2, token=" bird"), shown[3], examples.PICTURES[0], (), 0, *values)
        assert forked[3][0].settings["forced"] == forced


# ---------------------------------------------------------------------------------------------------------- settings


def test_shared_controls_appear_once_and_the_rest_belongs_to_its_method():
    assert list(knobs.front_controls([SPEC, OTHER])) == ["guidance_scale", "lm_weight", "num_candidates"]
    assert [c.name for c in knobs.own_controls(SPEC)] == ["alpha", "temperature"]


def test_a_method_keeps_its_default_until_the_shared_slider_is_moved():
    front = {"guidance_scale": 3.0, "lm_weight": 0.5, "num_candidates": 1}
    assert knobs.gather(OTHER, front, (), {}, 7)["num_candidates"] == 8
    moved = knobs.gather(OTHER, front, ("num_candidates", "lm_weight"), {}, 7)
    assert (moved["num_candidates"], moved["guidance_scale"], moved["seed"]) == (1, 2.0, 7)


def test_unguided_turns_off_everything_that_guides():
    off = unguided(SPEC, SPEC.settings(guidance_scale=3, lm_weight=0.5, alpha=2, temperature=0.5))
    assert (off["guidance_scale"], off["lm_weight"], off["alpha"], off["temperature"]) == (1.0, 0.0, None, 0.5)
    assert knobs.presets([SPEC])["off"] == {"guidance_scale": 1.0, "lm_weight": 0.0}
    best = dataclasses.replace(OTHER, off={"num_candidates": 1, "own": 0})  # a method may know more that must be off
    assert knobs.presets([SPEC, best])["off"] == {"guidance_scale": 1.0, "lm_weight": 0.0, "num_candidates": 1}
    assert unguided(best, best.settings())["num_candidates"] == 1


def test_the_preset_off_is_off_whatever_a_method_was_set_to():
    front = knobs.front_controls(registry.available())
    moved = knobs.presets(registry.available())["off"]
    for spec in registry.available():
        own = {c.name: c.choices[-1] if c.kind == "choice" else c.default for c in knobs.own_controls(spec)}  # mcs-printed among them
        values = {name: c.default for name, c in front.items()} | moved
        pressed = knobs.gather(spec, values, tuple(moved), own | knobs.own_preset(spec, "off"), 0)
        assert pressed == unguided(spec, pressed)
    assert knobs.own_preset(SPEC, "strong") == knobs.own_preset(SPEC, "paper") == {}


def test_a_shared_control_is_told_in_words_that_hold_for_all():
    own = dataclasses.replace(SPEC, controls=(GUIDANCE_SCALE.but(help="Mine alone."), SEED))
    assert knobs.front_controls([own, OTHER])["guidance_scale"].help == GUIDANCE_SCALE.help


def test_every_kind_of_control_has_a_component():
    import gradio as gr

    kinds = {"number": gr.Slider, "choice": gr.Dropdown, "switch": gr.Checkbox, "text": gr.Textbox}
    for kind, component in kinds.items():
        control = fakes.Control(
            "x", kind, "X", "Does.", {"number": 1, "choice": "a", "switch": True, "text": ""}[kind], 0, 2, 1, ("a", "b")
        )
        assert isinstance(knobs.component(control), component)
    assert isinstance(knobs.component(ALPHA), gr.Number)


# ------------------------------------------------------------------------------------------------------------- links


def test_a_link_reopens_the_view_it_was_made_of():
    view = share.View([SPEC], knobs.front_controls([SPEC]))
    link = view.link("/somewhere/else/cat.jpg", ["one"], ("guidance_scale",), 7, 3.5, 0.0, None, 0.5)
    query = dict(pair.split("=") for pair in link.removeprefix("?").split("&"))
    assert query == {"input": "cat", "seed": "7", "guidance_scale": "3.5", "one.temperature": "0.5"}
    _, _, source, _, methods, touched, seed, scale, lm, alpha, temperature = view.restore(SimpleNamespace(query_params=query))
    assert source == examples.PICTURES[4]
    assert methods == ["one"]
    assert (touched, seed, scale, lm, alpha, temperature) == (("guidance_scale",), 7, 3.5, 0.0, None, 0.5)


def test_a_fresh_page_and_an_upload_have_no_link_of_their_own():
    view = share.View([SPEC], knobs.front_controls([SPEC]))
    assert view.link(examples.PICTURES[0], ["one"], (), 0, 2.0, 0.0, None, 0.0) == ""
    assert "holiday" not in view.link("/uploads/holiday.jpg", ["one"], ("lm_weight",), 0, 2.0, 0.5, None, 0.0)


def test_a_link_names_the_methods_where_some_are_left_out(monkeypatch):
    told = []
    monkeypatch.setattr(share.gr, "Warning", lambda text, title: told.append(text))
    view = share.View([SPEC, OTHER], {})
    assert view.link(examples.PICTURES[0], [OTHER.id], (), 0, *(c.default for c in view.own.values())) == f"?methods={OTHER.id}"
    mine, others, *_ = shown = view.restore(SimpleNamespace(query_params={"methods": f"{OTHER.id},nobody"}))
    assert (mine.visible, others.visible, shown[5]) == (False, True, [OTHER.id])
    assert told == [f"There is no method called 'nobody': choose from {SPEC.id}, {OTHER.id}."]


def test_a_run_leaves_as_json_and_as_one_file(picture):
    made = result()
    data = json.loads(share.as_json((made, result("a pet")), None))
    assert (data["results"][0]["caption"], data["unguided"][0]["caption"]) == ("a <dog>", "a pet")
    assert share.as_json(None, None) == sweep_json(None) == sweep_csv(None) == batch_csv([]) == ""  # nothing to save yet
    page = share.as_html(picture, [(SPEC, made, result("a pet"))])
    assert "data:image/jpeg;base64," in page
    assert "<script" not in page
    assert 'src="http' not in page


# ------------------------------------------------------------------------------------------------------------ studio


@pytest.fixture
def studio(monkeypatch) -> Studio:
    fakes.use_fakes(monkeypatch, fakes.Echo, fakes.Shout)
    return Studio(lambda: Lab(fakes.profile()))


def test_what_is_known_is_not_decoded_again_and_the_rest_is_one_batch(studio, picture):
    settings = [fakes.Echo.spec.settings(seed=s) for s in (0, 1, 0)]
    first = studio.results(picture, "echo", settings)
    again = studio.results(picture, "echo", [*settings, fakes.Echo.spec.settings(seed=2)])
    assert fakes.Echo.batches == [2, 1]
    assert [r.caption for r in again[:3]] == [r.caption for r in first]
    assert first[0].scores["clipscore"].encoder == "hash-8"
    assert studio.known(picture, "echo", settings)
    assert studio.known(picture, "echo", [fakes.Echo.spec.settings(seed=9)]) is None


def test_a_zero_gpu_space_lends_its_gpu_to_decoding_and_scoring_alone(monkeypatch, picture):
    fakes.use_fakes(monkeypatch, fakes.Echo)
    asked = []
    monkeypatch.setitem(sys.modules, "spaces", SimpleNamespace(GPU=lambda f: lambda *a: asked.append(f.__name__) or f(*a)))
    studio = Studio(lambda: Lab(fakes.profile()))
    for _ in range(2):
        (result_,) = studio.results(picture, "echo", [fakes.Echo.spec.settings()])
        assert result_.scores["clipscore"]
    assert asked == ["_decode"]  # the second time it was known


def test_the_store_is_bounded(studio, picture, monkeypatch):
    monkeypatch.setattr("captioners.ui.studio.REMEMBERED", 2)
    studio.results(picture, "echo", [fakes.Echo.spec.settings(seed=s) for s in range(5)])
    assert len(studio._kept) == 2


def test_models_run_on_a_few_threads_whoever_asks(studio, picture, monkeypatch):
    seen, inner = set(), fakes.Echo.decode
    monkeypatch.setattr(fakes.Echo, "decode", lambda self, *rest: seen.add(threading.current_thread().name) or inner(self, *rest))
    with ThreadPoolExecutor(12) as visitors:
        list(visitors.map(lambda seed: studio.results(picture, "echo", [fakes.Echo.spec.settings(seed=seed)]), range(24)))
    assert 1 <= len(seen) <= HANDS
    assert all(name.startswith("hand") for name in seen)


def test_a_bad_file_is_a_media_error(studio, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    for path in (str(broken), None, str(tmp_path / "absent.png")):
        with pytest.raises(MediaError):
            studio.media(path)


def test_a_player_streams_both_captions_and_says_what_it_cannot_do(studio):
    player = Player(studio, fakes.Echo.spec, knobs.front_controls([fakes.Echo.spec]))
    *moments, last = player.show(examples.PICTURES[0], (), 0, 1.0)
    assert moments
    assert 'data-done="yes"' in last[0]
    assert last[3][0].caption == last[3][1].caption
    (silent,) = Player(studio, fakes.Shout.spec, {}).show(examples.SOUNDS[0], (), 0, "loud")
    assert "cannot caption this kind of input" in silent[0]


def test_a_preview_answers_only_from_what_was_decoded_ahead(studio):
    player = Player(studio, fakes.Echo.spec, knobs.front_controls([fakes.Echo.spec]))
    view = (examples.PICTURES[0], (), 0, 3.1)
    assert not isinstance(player.preview(*view)[0], str)
    *_, last = player.show(examples.PICTURES[0], (), 0, 1.0)
    list(player.decode_ahead(last[3], examples.PICTURES[0], (), 0, 1.0))
    assert fakes.Echo.batches[1:] == [10]  # the rest of eleven scales, at once
    assert player.preview(*view)[3][0].settings["guidance_scale"] == 3.0


def test_a_slow_method_is_decoded_ahead_one_by_one_and_only_near_the_slider(studio, monkeypatch):
    player = Player(studio, fakes.Echo.spec, knobs.front_controls([fakes.Echo.spec]))
    *_, last = player.show(examples.PICTURES[0], ("guidance_scale",), 0, 2.0)
    slow = dataclasses.replace(last[3][0], seconds={"decode": BUDGET / 3})
    list(player.decode_ahead((slow, slow), examples.PICTURES[0], ("guidance_scale",), 0, 2.0))
    assert fakes.Echo.batches[1:] == [1, 1]
    assert player.preview(examples.PICTURES[0], (), 0, 2.4)[3][0].settings["guidance_scale"] == 2.5
    assert not isinstance(player.preview(examples.PICTURES[0], (), 0, 4.0)[0], str)


def test_what_is_decoded_ahead_waits_for_everybody_else(studio, picture, monkeypatch):
    monkeypatch.setattr("captioners.ui.traffic.PATIENCE", 0.2)
    settings = [fakes.Echo.spec.settings(seed=s) for s in (1, 2)]
    with studio._traffic.at_work():
        assert list(studio.ahead(picture, "echo", settings)) == []
    assert studio.known(picture, "echo", settings) is None
    monkeypatch.setattr("captioners.ui.traffic.PATIENCE", 5)
    background = studio.ahead(picture, "echo", settings)
    next(background)
    background.close()  # stopped half-way: nothing is kept
    assert studio.known(picture, "echo", settings) is None
    assert len(list(studio.ahead(picture, "echo", settings))) > 0
    assert studio.known(picture, "echo", settings)


def test_settings_that_no_control_allows_are_refused():
    with pytest.raises(SettingsError):
        knobs.gather(SPEC, {}, (), {"temperature": 99}, 0)


def test_every_example_is_there_small_and_credited():
    credits = (examples.FOLDER / "CREDITS.md").read_text(encoding="utf-8")
    files = [examples.FOLDER / p for p in (*examples.PICTURES, *examples.SOUNDS)]
    assert all(f.stat().st_size < 200_000 and f"`{f.name}`" in credits for f in files)


# ---------------------------------------------------------------------------------------------------- sweep and batch


def test_a_sweep_takes_values_that_the_control_allows():
    assert spread(GUIDANCE_SCALE, 1, 2, 3) == [1.0, 1.5, 2.0]
    assert spread(NUM_CANDIDATES, 1, 3, 9) == [1, 2, 3]
    with pytest.raises(SettingsError):
        spread(GUIDANCE_SCALE, 0, 50, 3)
    with pytest.raises(CaptionLabError):
        spread(GUIDANCE_SCALE, 2, 1, 3)


def test_a_sweep_marks_where_clipscore_is_best():
    swept = Swept("one", "guidance_scale", [1.0, 2.0, 3.0], [result("=a", 0.5), result("b", 0.9), result("c", 0.7)])
    assert swept.turning_point == 1
    assert "2 ← best CLIPScore" in sweep_table(swept)
    assert list(sweep_figure(swept).data[0].y) == [0.5, 0.9, 0.7]
    assert sweep_csv(swept).splitlines()[:2] == ["guidance_scale,caption,clipscore,perplexity,words", "1.0,'=a,0.5,20.0,2.0"]
    assert len(json.loads(sweep_json(swept))["results"]) == 3


def test_a_batch_goes_on_after_a_bad_file_and_looks_into_zips(studio, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no")
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.write(examples.PICTURES[0], "folder/dog.jpg")
        archive.writestr("folder/.hidden", "x")
    paths = [str(tmp_path / "broken.png"), str(tmp_path / "more.zip"), examples.SOUNDS[0]]
    rows = list(caption_files(studio, paths, ["echo", "shout"]))
    assert [(r.file, r.method) for r in rows] == [
        ("broken.png", ""), ("folder/dog.jpg", "echo"), ("folder/dog.jpg", "shout"), ("rooster.ogg", "echo")
    ]  # fmt: skip
    assert rows[0].error
    assert len(batch_csv(rows).splitlines()) == 5
    assert json.loads(batch_jsonl(rows).splitlines()[1])["caption"] == rows[1].result.caption
    assert "4 captions" in batch_table(rows)
    assert count_files(paths) == 3


def test_a_shared_slider_that_reaches_further_than_a_method_gives_it_its_own_end():
    narrow = Spec("n", "N", "I.", "https://example.org", ("image",), (GUIDANCE_SCALE.but(low=1), SEED))
    assert knobs.front_controls([narrow, SPEC])["guidance_scale"].low == 0
    assert knobs.gather(narrow, {"guidance_scale": 0.2}, ("guidance_scale",), {}, 0)["guidance_scale"] == 1


# ---------------------------------------------------------------------------------------------------- vote and about


def test_a_vote_is_unmasked_and_set_beside_the_judges():
    verdict = judged(result(clip=1.2), result(clip=1.0))
    assert verdict == {"specific": "guided", "fluent": "neither"}
    assert [unmasked(a, "B") for a in ("A", "B", "no difference")] == ["unguided", "guided", "neither"]
    votes = [
        {"method": "one", "specific": s, "fluent": "guided", "judge_specific": "guided", "judge_fluent": "neither"}
        for s in ("guided", "neither")
    ]
    html = tally_html(votes)
    assert "1 / 2" in html
    assert "1 of 2" in html
    assert "0 of 2" in html


def test_about_tells_of_every_shipped_method_how_it_works_where_it_fails_and_what_to_cite():
    specs = registry.available()
    html = about_html(specs, "embedded")
    assert set(STORIES) == {s.id for s in specs}
    for spec in specs:
        story = STORIES[spec.id]
        assert len(re.findall(r"[.:;](?: |$)", story.works)) >= 5
        assert all(escape(words) in html for words in (spec.formula, story.works, story.fails, story.cite))


def test_about_speaks_of_every_method_in_its_own_words(studio):
    html = about_html([fakes.Echo.spec], "embedded")
    assert "Echo" in html
    assert "Small stand-ins" in html
    assert "CC BY 4.0" in html


@pytest.mark.parametrize("method", [None, fakes.Denoiser, fakes.Mover])
def test_the_figure_that_plotly_does_not_check_would_pass_its_check(method, picture):
    import plotly.graph_objects as go

    made = method(None).caption(picture) if method else result()
    go.Figure(json.loads(trace_figure(method.spec if method else SPEC, made).to_json()))


def test_no_control_has_a_name_that_clients_take_for_a_file():
    """gradio_client downloads every {"path": …} in an answer, and a Result carries its settings by name: call it something else."""
    assert "path" not in {c.name for spec in registry.available() for c in spec.controls}

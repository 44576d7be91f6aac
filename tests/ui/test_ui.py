"""What surrounds the cards: settings, links and downloads, and what the page says about itself."""

import dataclasses
import json
import re
from html import escape
from types import SimpleNamespace

import fakes
from made_up import ALPHA, OTHER, SPEC, result

from captioners import registry
from captioners.controls import GUIDANCE_SCALE, SEED
from captioners.resources import EXAMPLES
from captioners.ui.components import examples, knobs, sharing
from captioners.ui.tabs.about import about_html
from captioners.ui.tabs.batch import batch_csv
from captioners.ui.tabs.sweep import sweep_csv, sweep_json

# ------------------------------------------------------------------------------------------------------------ settings


def test_shared_controls_appear_once_and_the_rest_belongs_to_its_method():
    assert list(knobs.front_controls([SPEC, OTHER])) == ["guidance_scale", "lm_weight", "num_candidates"]
    assert [c.name for c in knobs.own_controls(SPEC)] == ["alpha", "temperature"]


def test_a_method_keeps_its_default_until_the_shared_slider_is_moved():
    front = {"guidance_scale": 3.0, "lm_weight": 0.5, "num_candidates": 1}
    assert knobs.gather(OTHER, front, (), {}, 7)["num_candidates"] == 8
    moved = knobs.gather(OTHER, front, ("num_candidates", "lm_weight"), {}, 7)
    assert (moved["num_candidates"], moved["guidance_scale"], moved["seed"]) == (1, 2.0, 7)


def test_unguided_turns_off_everything_that_guides():
    off = SPEC.without_guidance(SPEC.settings(guidance_scale=3, lm_weight=0.5, alpha=2, temperature=0.5))
    assert (off["guidance_scale"], off["lm_weight"], off["alpha"], off["temperature"]) == (1.0, 0.0, None, 0.5)
    assert knobs.presets([SPEC])["off"] == {"guidance_scale": 1.0, "lm_weight": 0.0}
    best = dataclasses.replace(OTHER, unguided={"guidance_scale": 1.0, "num_candidates": 1})
    assert knobs.presets([SPEC, best])["off"] == {"guidance_scale": 1.0, "lm_weight": 0.0, "num_candidates": 1}
    assert best.without_guidance(best.settings())["num_candidates"] == 1


def test_the_preset_off_is_off_whatever_a_method_was_set_to():
    front = knobs.front_controls(registry.available())
    moved = knobs.presets(registry.available())["off"]
    for spec in registry.available():
        # mcs-printed among them
        own = {c.name: c.choices[-1] if c.kind == "choice" else c.default for c in knobs.own_controls(spec)}
        values = {name: c.default for name, c in front.items()} | moved
        pressed = knobs.gather(spec, values, tuple(moved), own | knobs.own_preset(spec, "off"), 0)
        assert pressed == spec.without_guidance(pressed)
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


# --------------------------------------------------------------------------------------------------------------- links


def test_a_link_reopens_the_view_it_was_made_of():
    view = sharing.PageLink([SPEC], knobs.front_controls([SPEC]))
    link = view.link("/somewhere/else/cat.jpg", ["one"], ("guidance_scale",), 7, 3.5, 0.0, None, 0.5)
    query = dict(pair.split("=") for pair in link.removeprefix("?").split("&"))
    assert query == {"input": "cat", "seed": "7", "guidance_scale": "3.5", "one.temperature": "0.5"}
    _, _, source, _, methods, touched, seed, scale, lm, alpha, temperature = view.restore(
        SimpleNamespace(query_params=query)
    )
    assert source == str(EXAMPLES / "cat.jpg")
    assert methods == ["one"]
    assert (touched, seed, scale, lm, alpha, temperature) == (("guidance_scale",), 7, 3.5, 0.0, None, 0.5)


def test_a_fresh_page_and_an_upload_have_no_link_of_their_own():
    view = sharing.PageLink([SPEC], knobs.front_controls([SPEC]))
    assert view.link(examples.PICTURES[0], ["one"], (), 0, 2.0, 0.0, None, 0.0) == ""
    assert "holiday" not in view.link("/uploads/holiday.jpg", ["one"], ("lm_weight",), 0, 2.0, 0.5, None, 0.0)


def test_a_link_names_the_methods_where_some_are_left_out(monkeypatch):
    told = []
    monkeypatch.setattr(sharing.gr, "Warning", lambda text, title: told.append(text))
    view = sharing.PageLink([SPEC, OTHER], {})
    assert (
        view.link(examples.PICTURES[0], [OTHER.id], (), 0, *(c.default for c in view.own.values()))
        == f"?methods={OTHER.id}"
    )
    mine, others, *_ = shown = view.restore(SimpleNamespace(query_params={"methods": f"{OTHER.id},nobody"}))
    assert (mine.visible, others.visible, shown[5]) == (False, True, [OTHER.id])
    assert told == [f"There is no method called 'nobody': choose from {SPEC.id}, {OTHER.id}."]


def test_a_run_leaves_as_json_and_as_one_file(picture):
    made = result()
    data = json.loads(sharing.as_json((made, result("a pet")), None))
    assert (data["results"][0]["caption"], data["unguided"][0]["caption"]) == ("a <dog>", "a pet")
    # nothing to save yet
    assert sharing.as_json(None, None) == sweep_json(None) == sweep_csv(None) == batch_csv([]) == ""
    page = sharing.as_html(picture, [(SPEC, made, result("a pet"))])
    assert "data:image/jpeg;base64," in page
    assert "<script" not in page
    assert 'src="http' not in page


# ----------------------------------------------------------------------------------------------------------- about


def test_about_tells_of_every_shipped_method_how_it_works_where_it_fails_and_what_to_cite():
    specs = registry.available()
    html = about_html(specs, "embedded")
    for spec in specs:
        told = spec.explanation
        assert len(re.findall(r"[.:;](?: |$)", told.works)) >= 5
        assert all(escape(words) in html for words in (spec.formula, told.works, told.fails, told.citation))


def test_what_turns_guidance_off_is_possible_for_every_method():
    for spec in registry.available():
        assert spec.unguided
        assert spec.without_guidance(spec.settings()).items() >= spec.unguided.items()


def test_about_speaks_of_every_method_in_its_own_words(monkeypatch):
    fakes.use_fakes(monkeypatch, fakes.Echo, fakes.Shout)
    html = about_html([fakes.Echo.spec], "embedded")
    assert "Echo" in html
    assert "Small stand-ins" in html
    assert "CC BY 4.0" in html


def test_no_control_has_a_name_that_clients_take_for_a_file():
    """gradio_client downloads every {"path": …} in an answer, and a Result carries its settings by name: call it
    something else.
    """
    assert "path" not in {c.name for spec in registry.available() for c in spec.controls}

"""Compare as a visitor uses it."""

import itertools
import json

import pytest
from typists import Counter, Typist

from captioners.ui.components import examples


def caption(page, method: str) -> str:
    return " ".join(page.locator(f"#cl-card-{method} .cl-caption .cl-token").all_inner_texts())


METHODS = ("typist", "mover", "denoiser", "counter")


def wait_for_all(page) -> None:
    """Every card has its caption and its plot."""
    for method in METHODS:
        page.wait_for_selector(f"#cl-card-{method} .cl-body[data-done=yes]")
        page.wait_for_selector(f"#cl-card-{method} .main-svg")


def wait_for_caption(page, method: str, words: str) -> None:
    page.wait_for_function(
        """([method, words]) => { const body = document.querySelector(`#cl-card-${method} .cl-body[data-done=yes]`);
        return body && [...body.querySelectorAll('.cl-caption .cl-token')].map(t => t.innerText).join(' ') === words; }""",
        arg=[method, words],
    )


def set_slider(page, label: str, value: float) -> None:
    """As by hand: typed into the slider's box and left."""
    box = page.get_by_label(f"number input for {label}")
    box.fill(str(value))
    box.blur()


def test_the_first_screen_has_captions_of_an_example_and_a_quiet_console(visit):
    page = visit()
    assert caption(page, "typist") == "a picture at 2.0 of many"
    assert "a picture at 1.0 of many" in page.locator("#cl-card-typist .cl-plain").inner_text()
    wait_for_caption(page, "counter", "best of 1")
    wait_for_all(page)
    assert page.locator("#cl-picture img").is_visible()
    assert visit.said == []


def test_an_uploaded_picture_is_captioned_and_plotted(visit):
    page = visit("?seed=1")
    page.get_by_label("Remove Image").click()
    page.locator("#cl-card-typist .cl-message").wait_for()
    page.locator("#cl-picture input[type=file]").set_input_files(examples.PICTURES[4])
    wait_for_caption(page, "typist", "a picture at 2.0 of many")
    wait_for_all(page)


def test_an_example_is_captioned_when_it_is_chosen(visit):
    page = visit()
    with page.expect_event("response", lambda r: "queue/join" in r.url):
        page.locator(".gallery-item").nth(1).click()
    page.wait_for_function("location.search.includes('input=polar-bear')")
    wait_for_caption(page, "typist", "a picture at 2.0 of many")


def test_the_guidance_slider_changes_only_methods_that_listen(visit):
    page = visit("?seed=2")
    wait_for_caption(page, "counter", "best of 1")
    before = Counter.runs
    set_slider(page, "Guidance scale γ", 3.7)
    wait_for_caption(page, "typist", "a picture at 3.7 of many")
    assert Counter.runs == before


def test_a_sound_is_captioned_by_those_that_can(visit):
    page = visit()
    page.get_by_role("tab", name="Sound").click()
    wait_for_caption(page, "typist", "a sound at 2.0 of many")
    page.wait_for_function(
        "document.querySelector('#cl-card-counter .cl-message')?.innerText.includes('cannot caption')"
    )


def test_stop_ends_a_run_within_a_second(visit):
    page = visit("?seed=3")
    page.locator("#cl-card-typist").get_by_role("button", name="More").click()
    page.locator("#cl-card-typist").get_by_label("number input for Temperature").fill("2")
    page.locator("#cl-card-typist").get_by_label("number input for Temperature").blur()
    page.wait_for_selector("#cl-card-typist .cl-body[data-done=no]")
    page.click("#cl-stop")
    page.wait_for_timeout(1000)
    shown = caption(page, "typist")
    page.wait_for_timeout(5000)
    assert caption(page, "typist") == shown
    assert page.locator("#cl-card-typist .cl-body[data-done=no]").count() == 1


def test_a_broken_file_is_told_of_in_one_sentence(visit, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    page = visit()
    page.get_by_label("Remove Image").click()
    page.locator("#cl-picture input[type=file]").set_input_files(broken)
    page.get_by_text("This is not a picture or a sound that can be read").first.wait_for()
    # the file is gone, and there is room for another
    page.wait_for_selector("#cl-picture input[type=file]", state="attached")
    page.wait_for_selector("#cl-picture img", state="detached")
    assert "Traceback" not in page.content()


def test_a_caption_is_forked_at_a_word(visit):
    page = visit("?seed=4")
    page.locator("#cl-card-typist .cl-caption .cl-token").nth(1).click()
    page.locator("#cl-typist-1 [data-token=' other']").click()
    wait_for_caption(page, "typist", "a other at 2.0 of many")
    page.click("#cl-run")
    wait_for_caption(page, "typist", "a picture at 2.0 of many")


def test_presets_and_reset(visit):
    page = visit()
    page.click("#cl-off")
    wait_for_caption(page, "typist", "a picture at 1.0 of many")
    page.click("#cl-strong")
    wait_for_caption(page, "typist", "a picture at 4.0 of many")
    page.click("#cl-reset")
    wait_for_caption(page, "typist", "a picture at 2.0 of many")


def test_the_link_reopens_the_view(visit):
    page = visit("?seed=5")
    set_slider(page, "Guidance scale γ", 3.3)
    wait_for_caption(page, "typist", "a picture at 3.3 of many")
    page.wait_for_function("location.search.includes('guidance_scale=3.3')")
    query = page.evaluate("location.search")
    again = visit(query)
    wait_for_caption(again, "typist", "a picture at 3.3 of many")
    assert "seed=5" in query


def test_methods_come_and_go_and_the_link_knows(visit):
    page = visit()
    wait_for_caption(page, "counter", "best of 1")
    box = page.locator("#cl-methods input").nth(METHODS.index("counter"))
    box.uncheck()
    page.wait_for_selector("#cl-card-counter", state="hidden")
    page.wait_for_function("location.search.includes('methods=')")
    again = visit(page.evaluate("location.search"))
    wait_for_caption(again, "typist", "a picture at 2.0 of many")
    assert not again.locator("#cl-card-counter").is_visible()
    box.check()
    wait_for_caption(page, "counter", "best of 1")
    page.wait_for_function("!location.search.includes('methods=')")


@pytest.mark.parametrize(("button", "name"), [("#cl-json", "caption-lab.json"), ("#cl-report", "caption-lab.html")])
def test_a_run_is_downloaded(visit, button, name):
    page = visit()
    wait_for_caption(page, "counter", "best of 1")
    with page.expect_download() as download:
        page.click(button)
    text = download.value.path().read_text(encoding="utf-8")
    assert download.value.suggested_filename == name
    if name.endswith("json"):
        assert {r["method"] for r in json.loads(text)["results"]} == set(METHODS)
    else:
        assert "a picture at 2.0 of many" in text


def test_a_phone_needs_no_sideways_scrolling(visit):
    page = visit(width=390, height=844)
    page.wait_for_selector("#cl-card-typist .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    cards = [page.locator(f"#cl-card-{m}").bounding_box() for m in METHODS]
    assert all(above["y"] + above["height"] <= below["y"] for above, below in itertools.pairwise(cards))


def test_on_a_phone_caption_goes_to_the_cards_below_the_sliders(visit):
    page = visit(width=390, height=844)
    assert page.evaluate("document.querySelector('#cl-card-typist').getBoundingClientRect().top > innerHeight")
    page.click("#cl-run")
    page.wait_for_function("document.querySelector('#cl-card-typist').getBoundingClientRect().top < innerHeight / 2")


def test_on_a_laptop_four_cards_stand_side_by_side_and_their_parts_line_up(visit):
    page = visit()
    wait_for_all(page)
    cards = [page.locator(f"#cl-card-{m}").bounding_box() for m in METHODS]
    assert all(left["x"] + left["width"] <= right["x"] for left, right in itertools.pairwise(cards))
    for part in (".cl-body", ".cl-plot"):
        tops = {round(page.locator(f"#cl-card-{m} {part}").first.bounding_box()["y"]) for m in METHODS}
        assert len(tops) == 1
    bottom = page.locator("#cl-card-typist .cl-plot").bounding_box()
    assert bottom["y"] + bottom["height"] <= 900  # nothing to scroll for


def test_nothing_jumps_while_a_caption_comes(visit):
    page = visit("?seed=6&typist.temperature=0.1")
    wait_for_all(page)
    height = "document.querySelector('.cl-cards').getBoundingClientRect().height"
    before = page.evaluate(height)
    page.evaluate(
        f"""() => {{ window.heights = []; const look = () => {{ window.heights.push({height}); requestAnimationFrame(look); }};
        look(); window.began = false;
        const begun = () => {{ window.began ||= !!document.querySelector("#cl-card-typist .cl-body[data-done=no]"); }};
        new MutationObserver(begun).observe(document.body, {{subtree: true, childList: true, attributes: true}}); }}"""
    )
    page.click("#cl-dice")
    page.wait_for_function("window.began")  # however short the time between is on a busy machine
    page.wait_for_selector("#cl-card-typist .cl-body[data-done=yes]")
    assert {round(h) for h in page.evaluate("window.heights")} == {round(before)}


def test_the_steps_of_a_denoised_caption_are_walked_by_keyboard(visit):
    page = visit()
    wait_for_all(page)
    card = page.locator("#cl-card-denoiser")
    assert card.locator(".heatmaplayer image, .heatmaplayer .hm").first.is_visible()
    slider = card.get_by_label("Step", exact=True)
    states = (
        "tokens => tokens.map(t => [...t.classList].find(c => ['cl-masked', 'cl-draft', "
        "'cl-final'].includes(c)).slice(3))"
    )
    assert card.locator(".cl-replay p .cl-token").evaluate_all(states) == ["final"] * 6
    slider.focus()
    slider.press("Home")
    assert card.locator(".cl-replay output").inner_text() == "1 of 4"
    assert card.locator(".cl-replay p .cl-token").evaluate_all(states) == [
        "final",
        "final",
        "draft",
        "masked",
        "masked",
        "masked",
    ]
    assert "a grey cat masked" in slider.get_attribute("aria-valuetext")
    line, heat = card.locator(".cl-now").bounding_box(), card.locator(".heatmaplayer").bounding_box()
    assert heat["y"] <= line["y"] <= heat["y"] + heat["height"] / 4  # on the first of four rows
    assert card.get_by_role("img", name="2 of 6 cells masked").is_visible()


def test_dragging_the_guidance_slider_shows_what_was_decoded_ahead(visit):
    page = visit("?seed=7")
    wait_for_all(page)
    page.wait_for_timeout(3000)  # for the ladder, which waits until nobody is at work
    before = Typist.runs
    slider = page.get_by_label("range slider for Guidance scale γ")
    # held, not released
    slider.evaluate("s => { s.value = 4.5; s.dispatchEvent(new Event('input', {bubbles: true})); }")
    wait_for_caption(page, "typist", "a picture at 4.5 of many")
    assert Typist.runs == before


# Rules that Gradio's own markup breaks. The list may only shrink.
GRADIOS_OWN: set[str] = set()


@pytest.mark.parametrize("tab", ["Compare", "Sound", "Sweep", "Batch", "Blind vote", "About"])
def test_no_serious_accessibility_violation(visit, tab):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    page = visit()
    page.wait_for_selector("#cl-card-typist .main-svg")
    page.get_by_role("tab", name=tab).click()
    page.wait_for_timeout(1000)
    found = [v for v in axe.run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    ours = [
        (v["id"], n["target"], n["html"][:150])
        for v in found
        for n in v["nodes"]
        if "cl-" in n["html"] or ".cl-" in str(n["target"])
    ]
    assert {v["id"] for v in found} - {rule for rule, *_ in ours} <= GRADIOS_OWN, [
        (v["id"], v["nodes"][0]["html"][:150]) for v in found
    ]
    assert ours == []

"""Compare as a visitor uses it."""

import json

import pytest

from captioners.ui import examples


def caption(page, method: str) -> str:
    return " ".join(page.locator(f"#cl-card-{method} .cl-caption .cl-token").all_inner_texts())


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
    for method in ("typist", "counter"):
        page.wait_for_selector(f"#cl-card-{method} .main-svg")
    assert page.locator("#cl-picture img").is_visible()
    assert visit.said == []


def test_an_uploaded_picture_is_captioned_and_plotted(visit):
    page = visit("?seed=1")
    page.get_by_label("Remove Image").click()
    page.locator("#cl-card-typist .cl-message").wait_for()
    page.locator("#cl-picture input[type=file]").set_input_files(examples.PICTURES[4])
    wait_for_caption(page, "typist", "a picture at 2.0 of many")
    page.wait_for_selector("#cl-card-typist .main-svg")


def test_an_example_is_captioned_when_it_is_chosen(visit):
    page = visit()
    with page.expect_event("response", lambda r: "queue/join" in r.url):
        page.locator(".gallery-item").nth(1).click()
    page.wait_for_function("location.search.includes('input=beach')")
    wait_for_caption(page, "typist", "a picture at 2.0 of many")


def test_the_guidance_slider_changes_only_methods_that_listen(visit):
    from conftest import Counter

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
    page.wait_for_function("document.querySelector('#cl-card-counter .cl-message')?.innerText.includes('cannot caption')")


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


@pytest.mark.parametrize(("button", "name"), [("#cl-json", "caption-lab.json"), ("#cl-report", "caption-lab.html")])
def test_a_run_is_downloaded(visit, button, name):
    page = visit()
    wait_for_caption(page, "counter", "best of 1")
    with page.expect_download() as download:
        page.click(button)
    text = download.value.path().read_text(encoding="utf-8")
    assert download.value.suggested_filename == name
    if name.endswith("json"):
        assert {r["method"] for r in json.loads(text)["results"]} == {"typist", "counter"}
    else:
        assert "a picture at 2.0 of many" in text


def test_a_phone_needs_no_sideways_scrolling(visit):
    page = visit(width=390, height=844)
    page.wait_for_selector("#cl-card-typist .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    cards = [page.locator(f"#cl-card-{m}").bounding_box() for m in ("typist", "counter")]
    assert cards[0]["y"] + cards[0]["height"] <= cards[1]["y"]


def test_on_a_laptop_cards_stand_side_by_side(visit):
    page = visit()
    cards = [page.locator(f"#cl-card-{m}").bounding_box() for m in ("typist", "counter")]
    assert cards[0]["x"] + cards[0]["width"] <= cards[1]["x"]


# Rules that Gradio's own markup breaks. The list may only shrink.
GRADIOS_OWN: set[str] = set()


@pytest.mark.parametrize("tab", ["Compare", "Sound", "Sweep", "Batch", "Blind vote", "About"])
def test_no_serious_accessibility_violation(visit, tab):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed").Axe()
    page = visit()
    page.wait_for_selector("#cl-card-typist .main-svg")
    page.get_by_role("tab", name=tab).click()
    page.wait_for_timeout(1000)
    found = [v for v in axe.run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    ours = [(v["id"], n["target"], n["html"][:150]) for v in found for n in v["nodes"] if "cl-" in n["html"] or ".cl-" in str(n["target"])]
    assert {v["id"] for v in found} - {rule for rule, *_ in ours} <= GRADIOS_OWN, [(v["id"], v["nodes"][0]["html"][:150]) for v in found]
    assert ours == []

"""Pointing at a word shows where it comes from; a first visitor is shown around once."""

import pytest

WORD = "#cl-card-typist .cl-caption button.cl-token >> nth=1"
MAP = "#cl-card-typist .cl-word[data-at='1'] img"
LIGHT = ".cl-light:visible"


def told(page):
    """The page, once it knows where the typist's words come from."""
    page.wait_for_selector(MAP, state="attached")
    return page


def test_hovering_a_word_lights_the_picture_and_leaving_it_puts_the_light_out(visit):
    page = told(visit())
    page.hover(WORD)
    light, picture = page.wait_for_selector(LIGHT).bounding_box(), page.query_selector("#cl-picture img").bounding_box()
    assert light["x"] >= picture["x"] - 1
    assert light["x"] + light["width"] <= picture["x"] + picture["width"] + 1
    assert light["height"] > 50
    page.hover("h1")
    page.wait_for_selector(".cl-light", state="hidden")
    assert visit.said == []


def test_tabbing_to_a_word_lights_the_picture_and_nothing_moves(visit):
    page = told(visit())
    before = page.evaluate("document.documentElement.scrollHeight")
    page.focus("#cl-card-typist .cl-caption")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.wait_for_selector(LIGHT).get_attribute("data-word") == "picture"
    assert page.evaluate("document.documentElement.scrollHeight") == before


def test_tapping_a_word_on_a_phone_shows_the_map_in_its_panel(visit):
    page = told(visit("", 390, 844, has_touch=True))
    page.tap(WORD)
    page.wait_for_selector("#cl-typist-1 .cl-thumb img")


def test_a_sound_is_lit_over_time(visit):
    page = told(visit("?input=rooster"))
    page.hover(WORD)
    light = page.wait_for_selector(LIGHT).bounding_box()
    assert light["width"] > 100


@pytest.mark.parametrize("dark", [False, True])
def test_maps_and_tour_keep_nobody_out(visit, dark):
    page = told(visit("?__theme=dark" if dark else "?__theme=light", first=True))
    page.click("#cl-card-typist details[data-key=typist-where] summary")
    page.wait_for_selector(".cl-tour")
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    assert [v["id"] for v in axe.run(page).response["violations"] if v["impact"] in ("serious", "critical")] == []


def test_the_tour_says_three_things_and_stays_away_once_it_was_done(visit):
    page = visit(first=True)
    for words in ("Tinted words", "The unguided line", "Drag γ"):
        assert words in page.wait_for_selector(f".cl-tour:has-text('{words}')").inner_text()
        page.click(".cl-tour [data-tour=next]")
    page.wait_for_selector(".cl-tour", state="detached")
    page.reload()
    page.wait_for_selector("#cl-card-typist .cl-body[data-done=yes]")
    assert page.query_selector(".cl-tour") is None
    page.click("[data-tour=start]")
    page.wait_for_selector(".cl-tour")


def test_the_tour_can_be_skipped_by_keyboard(visit):
    page = visit(first=True)
    page.wait_for_selector(".cl-tour")
    page.keyboard.press("Escape")
    page.wait_for_selector(".cl-tour", state="detached")
    assert page.evaluate("localStorage.getItem('caption-lab-tour')") == "done"

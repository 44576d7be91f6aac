"""The page of a study as a rater uses it, and the results as only the secret link shows them."""

import json

import fakes
import pytest

from captioners.lab import Lab
from captioners.study.store import Store
from captioners.ui.page import launch_options
from captioners.ui.runtime.studio import Studio
from captioners.ui.study_page import STUDY_OPTIONS, build_study, prepare_study

NASTY = "<img src=x onerror=alert(1)> & co"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """(address, store, study) of a running study of four pictures and a sound."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "files").mkdir()
    for i in range(4):
        fakes.picture(folder / "files" / f"{i}.png", i)
    fakes.sound(folder / "files" / "4.wav", 4)
    names = [f"{i}.png" for i in range(4)] + ["4.wav"]
    for who in ("one", "two"):
        lines = [json.dumps({"id": name, "caption": f"{who} says {name[0]} {NASTY}"}) for name in names]
        (folder / f"{who}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    questions = 'title = "<i>Dogs</i>"\ncaptions = ["one.jsonl", "two.jsonl"]\ncheck_every = 4\n'
    (folder / "questions.toml").write_text(questions, encoding="utf-8")
    studio = Studio(lambda: Lab(fakes.profile()))
    made = prepare_study(
        str(folder / "files"), str(folder / "questions.toml"), str(folder / "votes.sqlite"), "fake", studio
    )
    page = build_study(made)
    options = launch_options() | STUDY_OPTIONS
    _, address, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **options)
    yield address, made.store, made.study
    page.close()


@pytest.fixture
def go(chromium, study):
    """go(query) opens the study in a browser of its own, or in one that is given."""
    contexts = []

    def open_page(query: str = "", width: int = 1440, height: int = 900, context=None):
        if context is None:
            context = chromium.new_context(viewport={"width": width, "height": height})
            context.set_default_timeout(120_000)
            contexts.append(context)
        page = context.new_page()
        page.on("dialog", lambda dialog: pytest.fail(f"a caption ran as a script: {dialog.message}"))
        page.goto(study[0] + query)
        return page

    yield open_page
    for context in contexts:
        context.close()


def vote(page, choose: str = "A") -> None:
    """One ballot; an attention check is answered as it asks."""
    ballot = page.locator(".cl-ballot")
    before, cards = ballot.inner_text(), page.locator(".cl-pair p").all_inner_texts()
    choice = next(("AB"[i] for i, text in enumerate(cards) if "is a check" in text), choose)
    for question in ("specific", "fluent"):
        page.locator(f"#cl-vote-{question}").get_by_label(choice, exact=True).check()
    page.click("#cl-vote")
    page.wait_for_function("before => document.querySelector('.cl-ballot')?.innerText !== before", arg=before)


def votes_of(store: Store, study) -> int:
    return len({(v.rater, v.pair) for v in store.votes(study.id)})


def test_a_rater_goes_through_the_share_and_is_thanked(go, study):
    _, store, kept = study
    before = votes_of(store, kept)
    page = go()
    page.get_by_role("button", name="Begin").click()
    page.locator(".cl-pair").wait_for()
    assert page.locator("h1").inner_text() == "<i>Dogs</i>"
    assert NASTY in page.locator(".cl-pair").inner_text()
    share = int(page.locator(".cl-progress").inner_text().split()[-1])
    heard = 0
    for _ in range(share):
        heard += page.locator("audio.cl-media").count()
        assert page.locator(".cl-media").count() == 1
        vote(page)
    page.get_by_text("That was all: thank you").wait_for()
    assert page.get_by_text(f"{share} of {share}").is_visible()
    assert share in (6, 7)  # five pairs, and a check in every four ballots
    assert heard
    assert votes_of(store, kept) == before + share
    assert "A was" not in page.content()  # nobody is told


def test_a_crowd_is_asked_to_wait(go, monkeypatch):
    monkeypatch.setattr("captioners.study.store.MOST_RATERS", 0)
    page = go()
    page.get_by_role("button", name="Begin").click()
    page.get_by_text("Many people are joining this study right now").wait_for()
    monkeypatch.undo()
    page.get_by_role("button", name="Begin").click()
    page.locator(".cl-pair").wait_for()


def test_a_rater_goes_on_after_a_reload_and_by_the_link(go):
    page = go()
    page.get_by_role("button", name="Begin").click()
    page.locator(".cl-pair").wait_for()
    vote(page, "B")
    place = page.locator(".cl-ballot").inner_text()
    page.reload()
    page.locator(".cl-pair").wait_for()
    assert page.locator(".cl-ballot").inner_text() == place
    page.get_by_text("Your data").click()
    link = page.locator(".cl-voting a[href*='rater=']").get_attribute("href")
    elsewhere = go(link.lstrip("/"))
    elsewhere.locator(".cl-pair").wait_for()
    assert elsewhere.locator(".cl-ballot").inner_text() == place


def test_a_rater_deletes_the_votes(go, study):
    _, store, kept = study
    before = votes_of(store, kept)
    page = go()
    page.get_by_role("button", name="Begin").click()
    page.locator(".cl-pair").wait_for()
    vote(page)
    assert votes_of(store, kept) == before + 1
    page.get_by_text("Your data").click()
    page.click("#cl-forget")
    page.get_by_role("button", name="Begin").wait_for()
    assert votes_of(store, kept) == before


def test_results_open_with_the_secret_and_not_without(go, study):
    _, _, kept = study
    refused = go(f"?study={kept.id}&results=guessed")
    refused.get_by_text("This link does not open the results").wait_for()
    assert refused.locator(".cl-results").count() == 0
    page = go(f"?study={kept.id}&results={kept.secret}")
    page.locator(".cl-results").wait_for()
    assert page.get_by_text("Krippendorff").first.is_visible()
    assert not page.locator("#cl-next").is_visible()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_a_ballot_fits_its_screen_and_everybody_can_use_it(go, width, height):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    ).Axe()
    page = go(width=width, height=height)
    page.get_by_role("button", name="Begin").click()
    page.locator(".cl-pair").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#cl-vote").bounding_box()["y"] < height
    found = [v for v in axe.run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], v["nodes"][0]["html"][:150]) for v in found] == []

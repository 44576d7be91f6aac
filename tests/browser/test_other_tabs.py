"""Sweep, Batch, Blind vote and About as a visitor uses them."""

from captioners.ui.components import examples


def test_a_sweep_is_there_at_once_and_another_is_drawn_and_downloaded(visit):
    page = visit()
    page.get_by_role("tab", name="Sweep").click()
    page.get_by_text("Typist over Guidance scale γ").wait_for()  # an example that nobody asked for
    with page.expect_download() as download:
        page.click("#cl-sweep-csv")
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 12
    assert "a picture at 5.0 of many" in lines[-1]
    page.get_by_label("To", exact=True).fill("1")
    page.click("#cl-sweep")
    page.get_by_text("a picture at 0.7 of many").wait_for()


def test_an_empty_batch_shows_an_example(visit):
    page = visit()
    page.get_by_role("tab", name="Batch").click()
    page.get_by_text("An example, until there are files of yours").wait_for()
    page.get_by_text("2 captions", exact=True).wait_for()
    page.click("#cl-batch-csv")
    page.get_by_text("There is nothing to download yet").first.wait_for()


def test_a_batch_has_a_row_for_every_file_and_is_downloaded(visit, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    page = visit()
    page.get_by_role("tab", name="Batch").click()
    page.locator("#cl-files input[type=file]").set_input_files([str(broken), examples.PICTURES[1]])
    page.get_by_text("polar-bear").first.wait_for()
    page.click("#cl-batch")
    page.get_by_text("5 captions", exact=True).wait_for()
    with page.expect_download() as download:
        page.click("#cl-batch-jsonl")
    text = download.value.path().read_text(encoding="utf-8")
    assert len(text.splitlines()) == 5  # the broken file, and four methods on the other
    assert "not a picture or a sound" in text


def test_a_blind_vote_is_counted_kept_and_forgotten(visit):
    page = visit()
    page.get_by_role("tab", name="Blind vote").click()  # the first pair comes by itself
    page.locator("#cl-vote").wait_for()
    assert " was typist" not in page.content()
    page.click("#cl-vote")
    page.get_by_text("Answer every question first").first.wait_for()
    page.locator("#cl-vote-specific").get_by_label("A", exact=True).check()
    page.locator("#cl-vote-fluent").get_by_label("no difference").check()
    page.click("#cl-vote")
    page.locator(".cl-revealed").wait_for()
    assert "A was " in page.locator(".cl-revealed").inner_text()
    page.get_by_text("The leaderboard opens after 10 votes: you have 1.").wait_for()
    page.reload()
    page.get_by_role("tab", name="Blind vote").click()
    page.get_by_text("1 vote so far").wait_for()
    page.locator("#cl-vote").wait_for()
    page.get_by_text("Your data").click()
    page.click("#cl-forget")
    page.get_by_text("1 vote deleted.").wait_for()
    page.reload()
    page.get_by_role("tab", name="Blind vote").click()
    page.get_by_text("0 votes so far").wait_for()


def test_the_leaderboard_opens_after_ten_votes(visit):
    page = visit()
    page.get_by_role("tab", name="Blind vote").click()
    for k in range(10):
        assert page.locator(".cl-leaderboard").count() == 0
        if k:
            page.click("#cl-next")
        page.locator("#cl-vote").wait_for()
        for question in ("specific", "fluent"):
            page.locator(f"#cl-vote-{question}").get_by_label("A", exact=True).check()
        page.click("#cl-vote")
        page.locator(".cl-revealed").wait_for()
    assert page.locator(".cl-leaderboard svg").count() >= 2


def test_about_names_the_methods(visit):
    page = visit()
    page.get_by_role("tab", name="About").click()
    page.get_by_role("heading", name="How to read the page").wait_for()
    assert page.get_by_role("heading", name="Typist").last.is_visible()

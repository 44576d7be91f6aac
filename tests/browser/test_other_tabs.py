"""Sweep and Batch as a visitor uses them."""

from captioners.ui import examples


def test_a_sweep_is_drawn_and_downloaded(visit):
    page = visit()
    page.get_by_role("tab", name="Sweep").click()
    page.click("#cl-sweep")
    page.get_by_text("typist over guidance_scale").wait_for()
    with page.expect_download() as download:
        page.click("#cl-sweep-csv")
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 12
    assert "a picture at 5.0 of many" in lines[-1]


def test_a_batch_has_a_row_for_every_file_and_is_downloaded(visit, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    page = visit()
    page.get_by_role("tab", name="Batch").click()
    page.locator("#cl-files input[type=file]").set_input_files([str(broken), examples.PICTURES[1]])
    page.get_by_text("beach").first.wait_for()
    page.click("#cl-batch")
    page.get_by_text("3 captions", exact=True).wait_for()
    with page.expect_download() as download:
        page.click("#cl-batch-jsonl")
    text = download.value.path().read_text(encoding="utf-8")
    assert len(text.splitlines()) == 3
    assert "not a picture or a sound" in text

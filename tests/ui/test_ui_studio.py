"""The studio that runs methods and keeps results, and the players, sweeps and batches that ask it."""

import dataclasses
import json
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import fakes
import pytest
from made_up import SPEC, result

from captioners.controls import GUIDANCE_SCALE, NUM_CANDIDATES, SEED
from captioners.lab import Lab
from captioners.media import MediaError
from captioners.resources import EXAMPLES
from captioners.types import CaptionLabError, SettingsError, Spec
from captioners.ui.components import examples, knobs
from captioners.ui.components.card_controller import AHEAD_SECONDS, CardController
from captioners.ui.runtime.model_threads import THREADS
from captioners.ui.runtime.studio import CACHED_RESULTS, Studio
from captioners.ui.tabs.batch import batch_csv, batch_jsonl, batch_table, caption_files, count_files
from captioners.ui.tabs.sweep import Swept, spread, sweep_csv, sweep_figure, sweep_json, sweep_table

# -------------------------------------------------------------------------------------------------------------- studio


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


def test_the_store_is_bounded(studio, picture):
    assert studio._kept.size == CACHED_RESULTS
    studio._kept.size = 2
    studio.results(picture, "echo", [fakes.Echo.spec.settings(seed=s) for s in range(5)])
    assert len(studio._kept) == 2


def test_models_run_on_a_few_threads_whoever_asks(studio, picture, monkeypatch):
    seen, inner = set(), fakes.Echo.decode
    monkeypatch.setattr(
        fakes.Echo, "decode", lambda self, *rest: seen.add(threading.current_thread().name) or inner(self, *rest)
    )
    with ThreadPoolExecutor(12) as visitors:
        list(
            visitors.map(lambda seed: studio.results(picture, "echo", [fakes.Echo.spec.settings(seed=seed)]), range(24))
        )
    assert 1 <= len(seen) <= THREADS
    assert all(name.startswith("model") for name in seen)


def test_an_input_is_looked_at_before_any_card_asks(studio, picture, monkeypatch):
    looked = []
    monkeypatch.setattr(studio.lab, "_media_vector", looked.append)
    studio.prefetch(picture)
    studio._threads._pool.shutdown(wait=True)
    assert looked == [picture]


def test_a_bad_file_is_a_media_error(studio, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    for path in (str(broken), None, str(tmp_path / "absent.png")):
        with pytest.raises(MediaError):
            studio.media(path)


def test_a_player_streams_both_captions_and_says_what_it_cannot_do(studio):
    player = CardController(studio, fakes.Echo.spec, knobs.front_controls([fakes.Echo.spec]))
    *moments, last = player.show(examples.PICTURES[0], (), 0, 1.0)
    assert moments
    assert 'data-done="yes"' in last[0]
    assert last[3][0].caption == last[3][1].caption
    (silent,) = CardController(studio, fakes.Shout.spec, {}).show(examples.SOUNDS[0], (), 0, "loud")
    assert "cannot caption this kind of input" in silent[0]


def test_a_preview_answers_only_from_what_was_decoded_ahead(studio):
    player = CardController(studio, fakes.Echo.spec, knobs.front_controls([fakes.Echo.spec]))
    view = (examples.PICTURES[0], (), 0, 3.1)
    assert not isinstance(player.preview(*view)[0], str)
    *_, last = player.show(examples.PICTURES[0], (), 0, 1.0)
    list(player.decode_ahead(last[3], examples.PICTURES[0], (), 0, 1.0))
    assert fakes.Echo.batches[1:] == [10]  # the rest of eleven scales, at once
    assert player.preview(*view)[3][0].settings["guidance_scale"] == 3.0


def test_a_slow_method_is_decoded_ahead_one_by_one_and_only_near_the_slider(studio, monkeypatch):
    player = CardController(studio, fakes.Echo.spec, knobs.front_controls([fakes.Echo.spec]))
    *_, last = player.show(examples.PICTURES[0], ("guidance_scale",), 0, 2.0)
    slow = dataclasses.replace(last[3][0], seconds={"decode": AHEAD_SECONDS / 3})
    list(player.decode_ahead((slow, slow), examples.PICTURES[0], ("guidance_scale",), 0, 2.0))
    assert fakes.Echo.batches[1:] == [1, 1]
    assert player.preview(examples.PICTURES[0], (), 0, 2.4)[3][0].settings["guidance_scale"] == 2.5
    assert not isinstance(player.preview(examples.PICTURES[0], (), 0, 4.0)[0], str)


def test_what_is_decoded_ahead_waits_for_everybody_else(studio, picture, monkeypatch):
    monkeypatch.setattr("captioners.ui.runtime.foreground_gate.PATIENCE_SECONDS", 0.2)
    settings = [fakes.Echo.spec.settings(seed=s) for s in (1, 2)]
    with studio._gate.foreground():
        assert list(studio.ahead(picture, "echo", settings)) == []
    assert studio.known(picture, "echo", settings) is None
    monkeypatch.setattr("captioners.ui.runtime.foreground_gate.PATIENCE_SECONDS", 5)
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
    credits = (EXAMPLES / "CREDITS.md").read_text(encoding="utf-8")
    files = [EXAMPLES / p for p in (*examples.PICTURES, *examples.SOUNDS)]
    assert all(f.stat().st_size < 200_000 and f"`{f.name}`" in credits for f in files)


# ----------------------------------------------------------------------------------------------------- sweep and batch


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
    assert sweep_csv(swept).splitlines()[:2] == [
        "guidance_scale,caption,clipscore,perplexity,words",
        "1.0,'=a,0.5,20.0,2.0",
    ]
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


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_whose_contents_are_damaged_is_a_row_and_the_batch_goes_on(studio, tmp_path, packing):
    path = tmp_path / "damaged.zip"
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("dog.jpg", bytes(i * i % 251 for i in range(4000)))
        start = archive.infolist()[0].header_offset + 30 + len("dog.jpg")
    raw = bytearray(path.read_bytes())
    for place in range(start + 12, start + 40):  # within the packed bytes
        raw[place] ^= 0xFF
    path.write_bytes(raw)
    rows = list(caption_files(studio, [str(path), examples.SOUNDS[0]], ["echo"]))
    assert [r.file for r in rows] == ["damaged.zip", "rooster.ogg"]
    assert "pack the files again" in rows[0].error and rows[1].result


def test_a_shared_slider_that_reaches_further_than_a_method_gives_it_its_own_end():
    narrow = Spec("n", "N", "I.", "https://example.org", ("image",), (GUIDANCE_SCALE.but(low=1), SEED))
    assert knobs.front_controls([narrow, SPEC])["guidance_scale"].low == 0
    assert knobs.gather(narrow, {"guidance_scale": 0.2}, ("guidance_scale",), {}, 0)["guidance_scale"] == 1

"""Where a word comes from: the arithmetic by hand, every method on small models of random weights, and how it is
drawn.
"""

import math
from io import BytesIO

import numpy as np
import pytest
import torch
from made_up import trace
from PIL import Image

from captioners import registry
from captioners.attribution import (
    CELL_SECONDS,
    GRIDS,
    Attribution,
    WordSupport,
    along_time,
    attribute,
    explained,
    hidden_windows,
    of_result,
    spread,
    words_of,
)
from captioners.lab import Lab
from captioners.metrics.base import CaptionSet, measure
from captioners.metrics.pointing import points
from captioners.nets.encoders import AUDIO_RATE, WINDOW, AudioEncoder, ImageEncoder
from captioners.types import Candidate, Media, Result
from captioners.ui.rendering.diff import SAME, differences, differing
from captioners.ui.rendering.film import film, moments
from captioners.ui.rendering.heat import draw, outline, where_html, word_maps

PICTURE = Media("image", np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))
SOUND = Media("audio", np.random.default_rng(0).normal(0, 0.1, 16000 * 7).astype(np.float32), 16000)


def made(*tokens: str, caption: str = "", **details) -> Result:
    traces = [trace(i, token, -1, -2) for i, token in enumerate(tokens)]
    said = caption or "".join(tokens).strip()
    return Result("cfg", said, [Candidate(said)], traces, {}, 0, "fake", {}, {}, details=details)


class Watcher:
    """Says " dog" as likely as cell 3 is seen, and the other tokens whatever it sees."""

    def for_kind(self, kind):
        return self

    def score_without(self, media, result, hidden):
        scores = torch.zeros(len(hidden), len(result.trace))
        scores[:, 1] -= 2.0 * hidden[:, 3]
        return scores


# ---------------------------------------------------------------------------------------------------- the arithmetic


def test_the_grids_are_those_of_the_encoders():
    assert {"image": ImageEncoder.grid_shape, "audio": AudioEncoder.grid_shape} == GRIDS
    assert pytest.approx(WINDOW / AUDIO_RATE / GRIDS["audio"][1]) == CELL_SECONDS


def test_the_cell_without_which_a_word_is_unlikely_supports_it():
    found = attribute(Watcher(), PICTURE, made(" a", " dog"), reach=0)
    a, dog = found.words
    assert (dog.word, dog.positions, dog.strongest) == ("dog", [1], 3)
    assert dog.cells == [0, 0, 0, 2.0] + [0] * 45
    assert set(a.cells) == {0.0}


def test_hidden_neighbours_blur_the_support_but_not_its_centre():
    found = attribute(Watcher(), PICTURE, made(" a", " dog"), reach=1)
    assert found.words[1].strongest in (2, 3, 4, 9, 10, 11)
    assert found.words[1].cells[3] == max(found.words[1].cells)


def test_windows_hide_a_cell_and_its_neighbours_within_the_grid():
    windows = hidden_windows((3, 4), 1)
    assert windows.diagonal().all()
    assert windows[0].nonzero()[:, 0].tolist() == [0, 1, 4, 5]
    assert windows.sum(1).max() == 9
    assert torch.equal(hidden_windows((2, 2), 0), torch.eye(4, dtype=torch.bool))


def test_equal_support_of_all_windows_is_equal_support_of_all_cells():
    windows = hidden_windows((1, 3), 1)
    assert spread(torch.ones(3, 1), windows)[:, 0].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert spread(torch.tensor([[3.0], [0.0], [0.0]]), windows)[:, 0].tolist() == pytest.approx([1.5, 1.0, 0.0])


def test_pieces_of_a_word_are_one_word_and_the_end_is_none():
    pieces = [trace(i, t, -1, -1) for i, t in enumerate([" a", " skate", "board", ".", "<eos>"])]
    assert words_of(pieces) == [("a", [0]), ("skateboard", [1, 2])]


def test_a_result_carries_its_attribution_as_json_and_back():
    told = explained(Watcher(), PICTURE, made(" a", " dog"))
    assert told.details["attribution"]["shape"] == [7, 7]
    assert of_result(told).words[1].word == "dog"
    assert of_result(made(" a")) is None


def test_a_long_sound_tells_the_same_in_every_window():
    cells = [float(i) for i in range(10)] + [1.0] * 10
    assert along_time(cells, 5.12) == [i + 1.0 for i in range(10)]
    assert along_time(cells, 7.0) == [i + 1.0 for i in range(10)] + [1.0, 2.0, 3.0, 4.0]
    assert len(along_time(cells, 1.0)) == 2


# ----------------------------------------------------------------------------------------------------- every method


@pytest.mark.parametrize("method", ["cfg", "classifier", "mc-diffusion", "prefix-diffusion"])
@pytest.mark.parametrize("media", [PICTURE, SOUND], ids=["picture", "sound"])
def test_every_shipped_method_tells_where_its_words_come_from(method, media, embedded):
    lab = Lab(embedded)
    result = lab.method(method).caption(media)
    found = attribute(lab.method(method), media, result)
    assert [w.word for w in found.words] == [word for word, _ in words_of(result.trace)]
    assert all(len(w.cells) == math.prod(GRIDS[media.kind]) for w in found.words)
    assert np.isfinite([w.cells for w in found.words]).all()
    assert any(abs(value) > 1e-4 for w in found.words for value in w.cells)


def test_nothing_hidden_gives_the_trace_of_the_captioner(embedded):
    method = Lab(embedded).method("cfg")
    result = method.caption(PICTURE)
    scores = method.score_without(PICTURE, result, torch.zeros(1, 49, dtype=torch.bool))
    assert scores[0].tolist() == pytest.approx([t.cond for t in result.trace], abs=1e-3)


# ------------------------------------------------------------------------------------------------------- how it looks


def test_a_map_is_darkest_where_the_word_does_not_come_from():
    lit = np.zeros((7, 7))
    lit[0, 0] = 1.0
    alpha = np.asarray(draw(lit, True))[..., 3]
    assert alpha[2, 2] < alpha[-3, -3]
    sound = np.asarray(draw(lit[:1], False))[..., 3]
    assert sound[2, 2] > sound[2, -3]


def test_words_with_little_support_stay_faint():
    told = explained(Watcher(), PICTURE, made(" a", " dog"))
    a, dog = (np.asarray(m.image)[..., 3].astype(int) for m in word_maps(PICTURE, told))
    assert np.ptp(a) < 10 < np.ptp(dog)


def test_the_card_has_a_map_for_every_word_and_a_place_while_there_is_none():
    html = where_html("cfg", PICTURE, explained(Watcher(), PICTURE, made(" a", " dog<")))
    assert html.count("<figure") == 2
    assert 'data-at="1"' in html
    assert "dog&lt;" in html
    assert "<figure" not in where_html("cfg", PICTURE, made(" a"))
    assert "Where each word" in where_html("cfg", PICTURE, made(" a"))


def test_a_sound_is_drawn_by_its_outline():
    assert outline(np.array([0.0, 0.5, -1.0, 0.0]), 4) == [0.0, 0.5, 1.0, 0.0]
    assert "cl-audio" in where_html("cfg", SOUND, explained(Watcher(), SOUND, made(" a", " dog")))


# ---------------------------------------------------------------------------------------------- what guidance changed


def test_words_that_only_one_caption_has_differ():
    assert differing(["a", "black", "dog", "runs"], ["A", "dog", "runs", "fast"]) == ([1], [3])


def test_changed_words_are_marked_and_lost_ones_struck_out():
    changed, line = differences(made(" a", " skate", "board", " here"), made(caption="a <b> here"))
    assert changed == {1, 2}
    assert line == "a <s>&lt;b&gt;</s> here"
    assert differences(made(" a"), made(" a")) == (set(), SAME)


# ----------------------------------------------------------------------------------------------------- the pointing
# game


def found_at(cell: int, *words: str) -> Attribution:
    cells = [1.0 if i == cell else 0.0 for i in range(49)]
    return Attribution((7, 7), [WordSupport(word, [i], cells) for i, word in enumerate(words)])


def test_a_word_is_right_if_its_strongest_cell_lies_in_one_of_its_objects_boxes():
    boxes = {"dog": [(0.0, 0.0, 0.5, 0.5)], "cat": [(0.5, 0.5, 0.5, 0.5)]}
    ((hit, chance, centre),) = points(found_at(0, "a", "Dog"), boxes)
    assert (hit, centre) == (1.0, 1.0)
    assert chance == pytest.approx(0.25)
    assert points(found_at(48, "a", "dog"), boxes)[0][0] == 0.0
    assert points(found_at(48, "a", "cat"), boxes)[0][0] == 1.0


def test_boxes_that_overlap_count_once_for_chance():
    ((_, chance, _),) = points(found_at(0, "dogs"), {"dog": [(0.0, 0.0, 0.5, 1.0), (0.0, 0.0, 1.0, 0.5)]})
    assert chance == pytest.approx(0.75)


def test_an_expression_of_two_words_points_once_and_vague_words_do_not():
    boxes = {"fire hydrant": [(0.0, 0.0, 0.2, 0.2)], "stop sign": [(0.0, 0.0, 0.2, 0.2)]}
    assert len(points(found_at(0, "a", "fire", "hydrant", "near", "a", "sign"), boxes)) == 1
    assert points(found_at(0, "a", "man"), boxes) == []


def test_pointing_is_measured_over_words_beside_chance_and_the_middle():
    rows = CaptionSet(["x", "y", "z"], ["a"] * 3, points=[[(1.0, 0.5, 0.0), (0.0, 0.1, 0.0)], [(1.0, 0.3, 1.0)], []])
    results = measure(rows)
    assert results["pointing"].mean == pytest.approx(2 / 3)
    assert results["pointing_chance"].mean == pytest.approx(0.3)
    assert results["pointing_centre"].mean == pytest.approx(1 / 3)
    assert results["pointing"].items[:2] == [0.5, 1.0]
    assert math.isnan(results["pointing"].items[2])


# --------------------------------------------------------------------------------------------------------- the film


def test_the_film_shows_every_method_and_rests_on_the_last_picture():
    spec, told = registry.find("cfg").spec, explained(Watcher(), PICTURE, made(" a", " dog", "<eos>"))
    steps = [
        {"step": 1, "tokens": [["", "masked", 0.0], [" dog", "final", 1.0]]},
        {"step": 2, "tokens": [[" a", "final", 1.0]] * 2},
    ]
    made_film = Image.open(BytesIO(film(PICTURE, [(spec, told), (spec, made(" a", " dog", denoising=steps))])))
    assert made_film.format == "GIF"
    assert made_film.n_frames >= 2  # equal pictures are one
    assert made_film.size == (960, 270)
    made_film.seek(made_film.n_frames - 1)
    assert made_film.info["duration"] >= 2000


def test_a_caption_grows_or_is_denoised_in_the_film():
    grown = moments(made(" a", " dog", "<eos>"))
    assert [len(words) for words in grown] == [1, 2]
    (first,) = moments(made(" a", denoising=[{"step": 1, "tokens": [["", "masked", 0.0]]}]))
    assert first[0].masked


def test_a_sound_has_a_film_too():
    assert film(SOUND, [(registry.find("cfg").spec, explained(Watcher(), SOUND, made(" a", " dog")))])[:3] == b"GIF"

"""Method 4 on a small denoiser of random weights: rows and batches, regions, controls, forced tokens, trace and
ranking; and what the shipped one says.
"""

from collections import Counter

import pytest
import torch
from fakes import HashMatcher, is_content
from small_prefix_diffusion import SHAPES, plain_loop, settings, small, texts

from captioners import registry
from captioners.attribution import attribute, hidden_windows
from captioners.decoding import agreement, diversity
from captioners.methods.prefix_diffusion import CERTAIN, PrefixDiffusion
from captioners.nets.prefix_denoiser import PrefixDenoiser
from captioners.nets.regions import region_cells
from captioners.nets.schedules import SCHEDULES
from captioners.resources import WEIGHTS
from captioners.types import SettingsError, to_json
from captioners.words import count_words


@pytest.fixture(scope="module")
def method(embedded) -> PrefixDiffusion:
    return small(embedded.models.tokenizer, regions=1)


@pytest.fixture(scope="module")
def regional(embedded) -> PrefixDiffusion:
    """The prefix of the whole and of its four quarters."""
    return small(embedded.models.tokenizer, regions=5)


@pytest.fixture(scope="module")
def shipped(embedded) -> PrefixDiffusion:
    return registry.load("prefix-diffusion", embedded)


@pytest.fixture(params=["picture", "sound"])
def media(request):
    return request.getfixturevalue(request.param)


# ------------------------------------------------------------------------------------------------------- the loop


def test_candidates_that_are_still_alike_are_asked_once(method, picture, monkeypatch):
    asked, vectors = [], PrefixDenoiser.vectors
    monkeypatch.setattr(PrefixDenoiser, "vectors", lambda net, x, *rest: asked.append(len(x)) or vectors(net, x, *rest))
    method.caption(picture, settings(method, num_candidates=16, num_steps=30, length=6).replace(seed=3))
    assert asked[0] == 1  # nothing is settled yet
    assert len(asked) < 30 + 1 and max(asked[:-1]) == 16  # no pass where nothing is new; in the end all are themselves


def test_a_row_that_is_sure_is_not_asked_again(method, picture, monkeypatch):
    values = settings(method, num_candidates=2, num_steps=40, schedule="square", length=5, order="together")
    calls, vectors = [], PrefixDenoiser.vectors
    monkeypatch.setattr(PrefixDenoiser, "vectors", lambda net, x, *rest: calls.append(len(x)) or vectors(net, x, *rest))
    asked = {}
    for sure in (CERTAIN, 2.0):
        monkeypatch.setattr("captioners.methods.prefix_diffusion.CERTAIN", sure)
        calls.clear()
        assert len(method.caption(picture, values).trace[0].steps) == 40  # every step is told of all the same
        asked[sure] = sum(calls)
    # two candidates, and the second look at the better one; at the first step nothing can be read, and one is asked for
    # both
    assert asked[CERTAIN] < asked[2.0] == 3 * 40 - 1


def test_a_batch_of_candidates_equals_as_many_runs(method, picture):
    """The first k of n candidates are the k candidates, whatever stands beside them."""
    many = texts(method.caption(picture, settings(method, num_candidates=6)))
    for n in (1, 3):
        few = texts(method.caption(picture, settings(method, num_candidates=n)))
        assert not few - many


def test_rows_of_a_batch_do_not_see_each_other(method, picture, sound, draw):
    media = [picture, sound, draw(3), picture]
    values = [
        settings(method, guidance_scale=2.0, num_steps=8),  # more of them, and this net makes rounding errors large
        settings(method, sampler="dpm-solver++", schedule="linear"),
        settings(method, length=15, temperature=1.0),
        settings(method, seed=4, num_candidates=1, ranking="mbr"),
    ]
    for m, s, together in zip(media, values, method.caption_batch(media, values), strict=True):
        alone = method.caption(m, s)
        assert texts(together) == texts(alone) and together.caption == alone.caption
        assert together.trace[0].cond == pytest.approx(alone.trace[0].cond, abs=0.05)


def test_a_row_beside_longer_ones_is_told_step_by_step_as_alone(method, picture, draw):
    """Padding and what the others have settled change neither the trace nor the words along the steps."""
    values = [settings(method, num_candidates=1, length=n, guidance_scale=g) for n, g in ((5, 1.0), (18, 2.0))]
    together = method.caption_batch([picture, draw(3)], values)
    for m, s, result in zip([picture, draw(3)], values, together, strict=True):
        alone = method.caption(m, s)
        for a, b in zip(alone.details["denoising"], result.details["denoising"], strict=True):
            assert [t[:2] for t in a["tokens"]] == [t[:2] for t in b["tokens"]]
            assert [t[2] for t in a["tokens"]] == pytest.approx([t[2] for t in b["tokens"]], abs=0.01)
        for a, b in zip(alone.trace, result.trace, strict=True):
            assert (a.token, a.cond, a.uncond, a.guided) == (
                b.token,
                *(pytest.approx(v, abs=0.05) for v in (b.cond, b.uncond, b.guided)),
            )


def test_the_live_words_are_those_that_the_result_tells_of(method, picture):
    """A step shown while it happens has the same words, states and probabilities as in the finished result."""
    values = settings(method, num_candidates=1, guidance_scale=1.5)
    *steps, last = method.stream(picture, values)
    for step, told in zip(steps, last.result.details["denoising"], strict=True):
        shown = [[t.text, t.state] for t in step.tokens]
        assert shown[: len(told["tokens"])] == [t[:2] for t in told["tokens"]]
        assert [t.probability for t in step.tokens][: len(told["tokens"])] == pytest.approx(
            [t[2] for t in told["tokens"]], abs=1e-3
        )


def test_the_same_seed_gives_the_same_caption_and_another_one_another(method, media):
    first, again, other = (texts(method.caption(media, settings(method, seed=s))) for s in (1, 1, 2))
    assert first == again != other


def test_settled_words_grow_in_number_and_stay(method, picture):
    """After step k of K a share k / K of the positions is final, and what is final does not change any more."""
    steps = list(method.stream(picture, settings(method, num_candidates=1, num_steps=8)))[:-2]  # the last one rounds
    before: dict[int, str] = {}
    for step in steps:
        final = {i: t.text for i, t in enumerate(step.tokens) if t.state == "final"}
        assert before.items() <= final.items()
        assert len(final) <= len(step.tokens) * step.position // 8
        before = final


@pytest.mark.parametrize(("temperature", "repeats"), [(0, "once"), (1, "once"), (0, "any")])
def test_settled_words_are_not_repeated(method, media, temperature, repeats):
    """No word stands beside itself, and a content word is said once, be it there before or settled in the same step."""
    common = {"temperature": temperature, "repeats": repeats, "forced": {2: " dog"}, "length": 20}
    said = []
    for n in (5, 7, 20):
        *steps, _, _ = method.stream(media, settings(method, num_steps=n, seed=n, **common))  # the last one rounds
        for step in steps:
            final = {i: t.text for i, t in enumerate(step.tokens) if t.state == "final"}
            assert all(final.get(i + 1) != word for i, word in final.items() if word)
        said += Counter(w for w in final.values() if is_content(method.models.tokenizer, w)).values()
    assert (max(said) == 1) == (repeats == "once")


def test_a_stream_ends_with_the_caption(method, media):
    steps = list(method.stream(media, settings(method, guidance_scale=1.5)))
    result = method.caption(media, settings(method, guidance_scale=1.5))
    assert len(steps) == 7 and all(s.result is None for s in steps[:-1])
    assert steps[-1].result.caption == result.caption and texts(steps[-1].result) == texts(result)
    assert [s.position for s in steps[:-1]] == [1, 2, 3, 4, 5, 6]
    assert all(len(s.others) == 2 for s in steps)


# --------------------------------------------------------------------------------------------------------- regions


def test_with_regions_a_caption_is_what_the_plain_loop_says(regional, media, monkeypatch):
    monkeypatch.setattr("captioners.methods.prefix_diffusion.CERTAIN", 2.0)
    values = settings(regional, num_candidates=1, guidance_scale=2.0, length=7, order="together", num_steps=10)
    assert regional.caption(media, values).caption == plain_loop(regional, media, values)


def test_with_regions_a_stream_a_batch_and_a_single_caption_agree(regional, picture, sound):
    media, values = [picture, sound, picture], [settings(regional, seed=s, length=6 + s) for s in range(3)]
    for m, s, together in zip(media, values, regional.caption_batch(media, values), strict=True):
        *_, streamed = regional.stream(m, s)
        assert texts(together) == texts(regional.caption(m, s)) == texts(streamed.result)


def test_with_regions_every_word_has_its_cells(regional, media):
    result = regional.caption(media, settings(regional))
    found = attribute(regional, media, result)
    assert {len(word.cells) for word in found.words} == {SHAPES[media.kind][0]}
    assert any(abs(cell) > 1e-4 for word in found.words for cell in word.cells)


@torch.no_grad()
def test_a_hidden_quarter_is_what_is_seen_of_the_whole(regional, media):
    """Scores are finite where a quarter is hidden wholly, and those of nothing hidden are of the untouched prefix."""
    result = regional.caption(media, settings(regional))
    none = torch.zeros_like(region_cells(media.kind)[:1])
    scores = regional.score_without(media, result, torch.cat([none, region_cells(media.kind)[1:], none]))
    assert scores.shape == (6, len(result.trace)) and torch.isfinite(scores).all()
    assert torch.allclose(scores[0], scores[5], atol=1e-4)
    assert ((scores[1:5] - scores[0]).abs().amax(1) > 1e-3).all()
    assert regional.score_without(media, result, hidden_windows((3, 3), 0)) is None


# -------------------------------------------------------------------------------------------------------- controls


@pytest.mark.parametrize("length", [4, 9, 20])
@pytest.mark.parametrize("order", ["confidence", "together"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_caption_has_the_words_it_was_asked_for(method, media, length, temperature, order):
    result = method.caption(media, settings(method, length=length, temperature=temperature, order=order))
    assert {count_words(c.caption) for c in result.candidates} == {length}


ENDS = {
    "guidance_scale": (0, 5),
    "num_candidates": (1, 64),
    "num_steps": (5, 1000),
    "length": (4, 20),
    "temperature": (0, 2),
    "seed": (0, 2**31 - 1),
    "ranking": ("ranker", "mbr"),
    "order": ("confidence", "together", "paper"),
    "repeats": ("once", "any"),
    "clamp": ("auto", "on", "off"),
    "eta": (0, 1),
    "sampler": ("ddim", "dpm-solver++"),
    "schedule": tuple(SCHEDULES),
}


def test_every_control_is_tried():
    assert set(ENDS) == {c.name for c in PrefixDiffusion.spec.controls}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in ENDS.items() for value in some])
def test_controls_at_both_ends(method, picture, name, value):
    few = {"num_candidates": 1} if value == 1000 else {}
    result = method.caption(picture, settings(method, **few, **{name: value}))
    special = [method.models.tokenizer.piece(i) for i in method.models.tokenizer.special_ids]
    for candidate in result.candidates:
        assert candidate.caption and not any(token in candidate.caption for token in special)
    assert len(result.candidates) == result.settings["num_candidates"]
    assert all(-1e4 < entry.cond <= 1e-6 and -1e4 < entry.uncond <= 1e-6 for entry in result.trace)
    assert to_json(result)


def test_settings_out_of_range_are_refused(method):
    for wrong in (
        {"length": 3},
        {"length": 21},
        {"num_steps": 4},
        {"temperature": 2.1},
        {"sampler": "euler"},
        {"ranking": "best"},
    ):
        with pytest.raises(SettingsError):
            method.spec.settings(**wrong)


def test_without_noise_all_positions_start_alike_and_the_first_candidate_is_of_no_seed(method, picture):
    a, b = (
        method.caption(picture, settings(method, temperature=0, num_candidates=1, length=8, seed=s)).caption
        for s in (0, 1)
    )
    assert a == b


# ---------------------------------------------------------------------------------------------------- forced tokens


def test_forced_tokens_stay_where_they_are_put(method, media):
    for forced in ({0: " a", 2: " dog"}, {5: " snow"}, {0: " the", 1: " man", 12: " water"}):
        result = method.caption(media, method.spec.settings(forced=forced, num_steps=6, num_candidates=4))
        for position, token in forced.items():
            assert result.trace[position].token == token
        for candidate in result.candidates:
            ids = method.models.tokenizer.encode(candidate.caption)
            assert len(ids) > max(forced)


def test_a_forced_end_ends_the_caption(method, picture):
    result = method.caption(picture, method.spec.settings(forced={3: "<eos>"}, num_steps=6, num_candidates=2))
    assert len(result.trace) <= 3 and "<" not in result.caption


def test_a_forced_position_beyond_the_canvas_is_refused(method, picture):
    with pytest.raises(SettingsError, match="past the end"):
        method.caption(picture, method.spec.settings(forced={200: " dog"}))


# ------------------------------------------------------------------------------------------------ trace and ranking


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_trace_tells_both_branches_at_every_step(method, media, scale):
    values = settings(method, guidance_scale=scale, num_candidates=2)
    result = method.caption(media, values)
    assert len(result.details["denoising"]) == 6
    for entry in result.trace:
        assert len(entry.steps) == 6
        for step in entry.steps:
            assert set(step) == {"cond", "uncond", "guided"}
            if scale == 1:
                assert step["guided"] == pytest.approx(step["cond"], abs=1e-5)
        assert entry.cond in [pytest.approx(step["cond"], abs=1e-4) for step in entry.steps]
        assert entry.kl >= -1e-5
    assert any(abs(s["cond"] - s["uncond"]) > 1e-3 for e in result.trace for s in e.steps)  # the prefix matters


def test_ranking_by_the_ranker_and_by_agreement(method, picture):
    by_ranker, by_agreement = (
        method.caption(picture, settings(method, num_candidates=5, ranking=r)) for r in ("ranker", "mbr")
    )
    assert texts(by_ranker) == texts(by_agreement)
    vectors = HashMatcher().embed_text([HashMatcher.prompt + c.caption for c in by_ranker.candidates])
    seen = HashMatcher().embed_media([picture])[0]
    assert [c.score for c in by_ranker.candidates] == pytest.approx((vectors @ seen).tolist(), abs=1e-5)
    for result in (by_ranker, by_agreement):
        scores = [c.score for c in result.candidates]
        assert scores == sorted(scores, reverse=True)


def test_agreement_by_hand():
    a, b, c = agreement(["a dog runs", "a dog sits", "snow"])
    assert (a, b, c) == pytest.approx((0.3, 0.3, 0))  # of 5 + 5 words and pairs: a, dog, a dog: 6 / 10, halved
    found = diversity(["a dog runs", "a dog sits", "snow"])
    assert found == pytest.approx({"distinct": 1, "dist-1": 5 / 7, "dist-2": 3 / 4, "agreement": 0.2})


def test_diversity_is_told_of_several_candidates_only(method, picture):
    assert "diversity" not in method.caption(picture, settings(method, num_candidates=1)).details
    assert method.caption(picture, settings(method)).details["diversity"] == diversity(
        [c.caption for c in method.caption(picture, settings(method)).candidates]
    )


# ------------------------------------------------------------------------------------------------------ as shipped


@pytest.mark.skipif(not (WEIGHTS / "prefix-diffusion.safetensors").exists(), reason="its weights are not trained yet")
def test_what_is_shipped_says_something_of_its_kind(shipped, media):
    result = shipped.caption(media, shipped.spec.settings(num_steps=15))
    assert 3 <= count_words(result.caption) <= 20
    assert result.trace and result.details["diversity"]["distinct"] > 0.5

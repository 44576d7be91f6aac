"""Method 3 on a small denoiser of random weights, against a plain loop that is written down here; and what the
shipped one says.
"""

import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from fakes import is_content, small_models
from same import close, content

from captioners import guidance, registry
from captioners.decoding import generator
from captioners.media import load_media
from captioners.methods.mc_diffusion import MaskedConditionalDiffusion, full_weight, masked_cells
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig
from captioners.types import SettingsError, to_json

CELLS = {"image": 49, "audio": 20}


def restless(vocab: int) -> MaskDenoiser:
    """A denoiser whose words depend on everything it sees."""
    torch.manual_seed(0)
    net = MaskDenoiser(
        MaskDenoiserConfig(vocab=vocab, dim=48, text_layers=1, cross_layers=1, heads=2, image_codes=64, audio_codes=32)
    )
    for parameter in net.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return net.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def method(embedded) -> MaskedConditionalDiffusion:
    tokenizer = embedded.models.tokenizer
    net = restless(len(tokenizer))

    def codes(media):
        return [
            torch.randint(net.codes[m.kind].num_embeddings - 1, (CELLS[m.kind],), generator=generator(0, m, 7))
            for m in media
        ]

    return MaskedConditionalDiffusion(small_models(tokenizer, codes=codes, mask_denoiser=lambda: net))


@pytest.fixture(params=["picture", "sound"])
def media(request):
    return request.getfixturevalue(request.param)


def tokens_of(result, tokenizer) -> list[int]:
    return [tokenizer.tokenizer.token_to_id(entry.token.replace(" ", "▁")) for entry in result.trace]


# ---------------------------------------------------------------------------------------------------- the reference


def plain(
    method, media, rule: str, scale: float, rate: float, steps: int, seed: int = 0
) -> tuple[list[int], list[dict]]:
    """One row, both branches in full at every step, guidance on log-probabilities as the paper has it: words, each
    step's columns.
    """
    method_models, net = method.models, method.models.mask_denoiser()
    specials = list(method_models.tokenizer.special_ids)
    (codes,) = method_models.codes([media])
    gone = masked_cells(media, method.spec.settings(guidance=rule, mask_rate=rate, seed=seed), len(codes))
    here = torch.tensor([0])
    full = net.condition({media.kind: codes[None]}, here)
    part = net.condition({media.kind: net.masked(media.kind, codes, gone)[None]}, here)
    start = torch.tensor([method_models.start_token(media.kind)])
    rules = {"cfg": guidance.cfg, "mcs": guidance.mcs, "mcs-printed": guidance.mcs_printed}

    def guided(c, u):
        return guidance.normalise(rules[rule](c, u, scale))

    length = 1 + int(guided(*(net.length_logits(start, y)[0].log_softmax(-1) for y in (full, part))).argmax())
    x, history = torch.full((1, length), net.mask), []
    for k in range(steps, 0, -1):
        t, s = round(100 * k / steps), round(100 * (k - 1) / steps)
        columns = {}
        for name, condition in (("cond", full), ("uncond", part)):
            logits = net(start, x, torch.tensor([t]), condition, torch.tensor([length]))[0]
            logits[:, specials] = -math.inf
            columns[name] = logits.log_softmax(-1)
        columns["guided"] = guided(columns["cond"], columns["uncond"])
        may = columns["guided"].clone()

        def forbid_repeats(i: int, may=may) -> None:  # no word beside itself, no content word twice
            for j in range(length):
                near, word = abs(i - j) == 1, int(x[0, j])
                if word != net.mask and j != i and (near or is_content(method_models.tokenizer, word)):
                    may[i, word] = -math.inf

        for i in range(length):
            forbid_repeats(i)
        sure = may.max(-1).values
        covered = [i for i in range(length) if x[0, i] == net.mask]
        for i in sorted(covered, key=lambda i: -sure[i])[: max(0, len(covered) - length * s // 100)]:
            forbid_repeats(i)
            x[0, i] = may[i].argmax()
        history.append(columns)
    return x[0].tolist(), history


@pytest.mark.parametrize("rule", ["mcs", "cfg", "mcs-printed"])
@pytest.mark.parametrize("scale", [0, 0.5, 1, 2.5])
def test_captions_and_traces_are_those_of_the_plain_loop(method, media, rule, scale):
    settings = method.spec.settings(guidance=rule, guidance_scale=scale, mask_rate=0.4, num_steps=6, length="likeliest")
    result = method.caption(media, settings)
    words, history = plain(method, media, rule, scale, 0.4, 6)
    assert tokens_of(result, method.models.tokenizer) == words
    assert result.caption == method.models.tokenizer.decode(words)
    for entry, word in zip(result.trace, words, strict=True):
        assert len(entry.steps) == 6
        for step, columns in zip(entry.steps, history, strict=True):
            for name in ("cond", "uncond", "guided"):
                assert step[name] == pytest.approx(columns[name][entry.position, word].item(), abs=2e-3)
        assert {"cond": entry.cond, "uncond": entry.uncond, "guided": entry.guided} in entry.steps


# ------------------------------------------------------------------------------------------------------- the rules


def test_masking_everything_is_classifier_free_guidance_exactly(method, media):
    mcs, cfg = (
        method.caption(media, method.spec.settings(guidance=g, mask_rate=1, guidance_scale=3, num_steps=8))
        for g in ("mcs", "cfg")
    )
    assert mcs.caption == cfg.caption
    assert mcs.trace == cfg.trace


@pytest.mark.parametrize("scale", [0, 0.3, 1])
def test_the_printed_rule_is_the_expected_one_at_one_minus_the_scale(method, media, scale):
    values = {"mask_rate": 0.5, "num_steps": 8}
    printed = method.caption(media, method.spec.settings(guidance="mcs-printed", guidance_scale=scale, **values))
    expected = method.caption(media, method.spec.settings(guidance="mcs", guidance_scale=1 - scale, **values))
    assert printed.trace == expected.trace
    for rule, sign in (("mcs-printed", -1), ("mcs", 1)):  # also where the scale of the other rule would be out of range
        assert full_weight(method.spec.settings(guidance=rule, guidance_scale=4)) == (4 if sign > 0 else -3)


@pytest.mark.parametrize("values", [{"guidance": "mcs"}, {"guidance": "mcs-printed"}])
def test_masking_nothing_is_no_guidance(method, media, values):
    off = method.caption(media, method.spec.settings(guidance="cfg", guidance_scale=1, num_steps=8))
    none = method.caption(media, method.spec.settings(mask_rate=0, guidance_scale=4, num_steps=8, **values))
    assert none.caption == off.caption
    assert [t.guided for t in none.trace] == [t.guided for t in off.trace]
    assert [t.uncond for t in none.trace] == pytest.approx([t.cond for t in none.trace], abs=1e-4)


def test_guidance_changes_captions(method, media):
    captions = {
        method.caption(media, method.spec.settings(guidance_scale=s, guidance="cfg")).caption for s in (0, 1, 5)
    }
    assert len(captions) > 1


def test_the_mask_follows_from_seed_and_media_and_is_told(method, picture, draw):
    def cells(media, **values):
        return method.caption(media, method.spec.settings(num_steps=5, **values)).details["masked_cells"]

    half = cells(picture, mask_rate=0.5)
    assert half["shape"] == [7, 7]
    assert len(half["cells"]) == 24
    assert half == cells(picture, mask_rate=0.5, num_candidates=3, guidance_scale=4)
    assert half != cells(picture, mask_rate=0.5, seed=1)
    assert half != cells(draw(5), mask_rate=0.5)
    assert set(half["cells"]) < set(cells(picture, mask_rate=0.8)["cells"])
    assert cells(picture, mask_rate=1)["cells"] == list(range(49))


def test_the_cells_of_a_sound_are_bands_and_times(method, sound):
    assert method.caption(sound, method.spec.settings(num_steps=5)).details["masked_cells"]["shape"] == [2, 10]


# ------------------------------------------------------------------------------------------- rows, batches, streams

ROWS = [
    ("image", 1, {"guidance_scale": 2, "num_candidates": 3, "num_steps": 7}),
    ("audio", 1, {"guidance": "cfg", "guidance_scale": 1, "num_steps": 12}),
    ("image", 2, {"order": "random", "temperature": 0.8, "top_k": 50, "seed": 3, "num_steps": 9}),
    ("audio", 2, {"guidance": "mcs-printed", "guidance_scale": 0.4, "mask_rate": 0.9, "num_steps": 5}),
    ("image", 1, {"guidance_scale": 3, "max_tokens": 4, "forced": {1: " dog"}, "num_steps": 6}),
    ("image", 3, {"order": "random", "guidance_scale": 1, "num_steps": 20, "num_candidates": 2}),
]


def test_a_batch_of_different_rows_equals_single_runs(method, draw, play):
    media = [{"image": draw, "audio": play}[kind](100 + seed) for kind, seed, _ in ROWS]
    settings = [method.spec.settings(**values) for _, _, values in ROWS]
    together = method.caption_batch(media, settings)
    for item, values, result in zip(media, settings, together, strict=True):
        close(content(method.caption(item, values)), content(result), within=2e-3)


@pytest.mark.parametrize(
    "values", [{"guidance_scale": 1}, {"num_candidates": 2}, {"order": "random", "temperature": 1}]
)
def test_a_stream_shows_every_step_and_ends_with_what_caption_gives(method, media, values):
    settings = method.spec.settings(num_steps=9, **values)
    *steps, last = method.stream(media, settings)
    assert content(last.result) == content(method.caption(media, settings))
    assert [(step.position, step.total) for step in steps] == [(k, 9) for k in range(1, 10)]
    assert all(step.result is None and len(step.others) == settings["num_candidates"] - 1 for step in steps)
    masked = [sum(t.state == "masked" for t in step.tokens) for step in steps]
    assert masked == sorted(masked, reverse=True)
    assert masked[-1] == 0
    assert {t.state for t in steps[-1].tokens} == {t.state for t in last.tokens} == {"final"}
    assert all(0 <= t.probability <= 1 for step in steps for t in step.tokens)
    if settings["num_candidates"] == 1:
        shown = [
            {"step": s.position, "tokens": [[t.text, t.state, round(t.probability, 4)] for t in s.tokens]}
            for s in steps
        ]
        assert last.result.details["denoising"] == shown


def test_words_that_chance_may_still_change_are_drafts(method, picture):
    *steps, _ = method.stream(picture, method.spec.settings(order="random", temperature=1, num_steps=10))
    assert {t.state for step in steps[:-1] for t in step.tokens} <= {"masked", "draft"}


def test_the_same_seed_gives_the_same_caption_and_another_another(method, media):
    for order in ("confidence", "random"):
        captions = [
            method.caption(media, method.spec.settings(order=order, temperature=1, seed=s)).caption for s in (1, 1, 2)
        ]
        assert captions[0] == captions[1] != captions[2]


def test_a_drawn_length_differs_and_the_likeliest_one_does_not(method, picture):
    def lengths(**values):
        settings = [method.spec.settings(num_steps=5, guidance_scale=1, seed=seed, **values) for seed in range(12)]
        return {len(r.trace) for r in method.caption_batch([picture] * 12, settings)}

    assert len(lengths(length="likeliest")) == 1
    assert len(lengths(length="drawn", temperature=1)) > 1


def test_with_guidance_off_one_branch_is_decoded(method, picture, monkeypatch):
    net = method.models.mask_denoiser()
    vectors, rows = net.vectors, []
    monkeypatch.setattr(net, "vectors", lambda start, *rest: rows.append(len(start)) or vectors(start, *rest))
    method.caption_batch(
        [picture] * 3, [method.spec.settings(guidance="cfg", guidance_scale=s, num_steps=5) for s in (1, 2, 1)]
    )
    # three rows and one second branch; then one pass over five states for each that had none
    assert rows == [4] * 5 + [5, 5]


def test_candidates_are_ranked_by_the_ranker(method, media):
    result = method.caption(media, method.spec.settings(num_candidates=5, num_steps=5))
    scores = [c.score for c in result.candidates]
    assert scores == sorted(scores, reverse=True)
    assert result.caption == result.candidates[0].caption
    assert len({c.caption for c in result.candidates}) > 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "not the paper's sampler"),
        ({"order": "random", "temperature": 1}, "as the paper does"),
        ({"order": "random", "temperature": 0}, "of the likeliest words; the paper has"),
        ({"order": "random", "temperature": 0.5, "top_k": 9}, "at temperature 0.5, of the best 9 words; the paper has"),
    ],
    ids=str,
)
def test_a_result_says_whether_its_sampler_is_the_paper_s(method, picture, values, words):
    (note,) = method.caption(picture, method.spec.settings(num_steps=5, **values)).notes
    assert words in note


# --------------------------------------------------------------------------------------------- every step, every end


@pytest.mark.parametrize("order", ["confidence", "random"])
def test_no_mask_or_padding_is_left_whatever_the_number_of_steps(method, picture, order):
    counts = [(n, t) for n in (5, 6, 9, 17, 33) for t in (0, 2)] + [(99, 2), (100, 0)]
    settings = [method.spec.settings(num_steps=n, order=order, temperature=t, seed=n, max_tokens=14) for n, t in counts]
    tokenizer = method.models.tokenizer
    for result, values in zip(method.caption_batch([picture] * len(settings), settings), settings, strict=True):
        ids = tokens_of(result, tokenizer)
        assert not {*ids} & {*tokenizer.special_ids}
        assert result.caption == tokenizer.decode(ids)
        assert 1 <= len(ids) <= 14
        assert len(result.details["denoising"]) == len(result.trace[0].steps) == values["num_steps"]
        assert all(
            math.isfinite(v)
            for entry in result.trace
            for v in (entry.cond, entry.uncond, entry.guided, entry.kl, entry.entropy)
        )


@pytest.mark.parametrize(("temperature", "repeats"), [(0, "once"), (1, "once"), (0, "any")])
def test_words_in_order_of_confidence_are_not_repeated(method, media, temperature, repeats):
    """No word stands beside itself, and a content word is said once."""
    common = {"temperature": temperature, "repeats": repeats, "forced": {2: " dog"}}
    settings = [method.spec.settings(num_steps=n, seed=n, **common) for n in (5, 7, 20)]
    said = []
    for result in method.caption_batch([media] * 3, settings):
        ids = tokens_of(result, method.models.tokenizer)
        assert all(a != b for a, b in itertools.pairwise(ids))
        said += Counter(i for i in ids if is_content(method.models.tokenizer, i)).values()
    assert (max(said) == 1) == (repeats == "once")


def ends(control) -> list:
    return list(control.choices) if control.kind == "choice" else [control.low, control.high]


def test_every_control_works_at_both_ends_of_its_range(method, media):
    base = {"num_steps": 5, "max_tokens": 6}
    settings = [method.spec.settings(**(base | {c.name: value})) for c in method.spec.controls for value in ends(c)]
    for result, values in zip(method.caption_batch([media] * len(settings), settings), settings, strict=True):
        assert len(result.candidates) == values["num_candidates"]
        assert 1 <= len(result.trace) <= values["max_tokens"]
        assert result.settings == to_json(values)


# ------------------------------------------------------------------------------------------------------ forced words


@pytest.mark.parametrize("order", ["confidence", "random"])
def test_forced_words_stay_at_every_step(method, media, order):
    settings = method.spec.settings(
        forced={0: " two", 3: " dog"}, order=order, temperature=1, num_candidates=3, num_steps=6
    )
    for step in method.stream(media, settings):
        assert (step.tokens[0].text, step.tokens[3].text) == (" two", " dog")
        assert (step.tokens[0].state, step.tokens[3].state) == ("final", "final")
    assert all(c.caption.startswith("two") for c in step.result.candidates)
    assert step.result.trace[3].token == " dog"


def test_forcing_what_was_said_anyway_at_the_start_keeps_it(method, picture):
    first = method.caption(picture, method.spec.settings(num_steps=6))
    word = next(t for t in first.trace if t.token.startswith(" ") and t.token.strip().isalpha())
    again = method.caption(picture, method.spec.settings(num_steps=6, forced={word.position: word.token}))
    assert again.trace[word.position].token == word.token
    assert len(again.trace) == len(first.trace)


def test_a_forced_end_is_a_length(method, picture):
    assert len(method.caption(picture, method.spec.settings(forced={4: "<eos>"}, num_steps=5)).trace) == 4


def test_a_forced_word_beyond_the_longest_caption_is_refused(method, picture):
    with pytest.raises(SettingsError, match="past the end"):
        method.caption(picture, method.spec.settings(forced={34: " dog"}, max_tokens=40))


# ------------------------------------------------------------------------------------------------- the shipped weights


@pytest.mark.parametrize(
    ("name", "word"), [("dog.jpg", "dog"), ("beach.jpg", "beach"), ("crickets.ogg", "cricket"), ("baby.ogg", "baby")]
)
def test_the_shipped_model_names_what_is_there(embedded, name, word):
    shipped = registry.load("mc-diffusion", embedded)
    media = load_media(Path(__file__).resolve().parents[2] / "assets/examples" / name)
    settings = [
        shipped.spec.settings(guidance_scale=1, length="likeliest"),
        shipped.spec.settings(guidance="cfg", guidance_scale=1.5),
    ]
    for result in shipped.caption_batch([media] * 2, settings):
        assert word in result.caption
        assert {"image-vq", "audio-vq"} & set(result.weights) and "mc-diffusion" in result.weights

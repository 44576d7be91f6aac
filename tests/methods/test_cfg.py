"""Method 1 end to end on the embedded models: what is said, what the trace tells of it, and what changes neither."""

import itertools
import math

import pytest
import torch
from same import close, content
from torch.distributions import Categorical, kl_divergence

from captioners.types import Result, SettingsError, to_json

PROMPT = "a dog runs through the grass | two men are playing football"
LONG_PROMPT = " | ".join([PROMPT] * 5)


def tokens_of(result: Result, tokenizer) -> list[int]:
    return [tokenizer.tokenizer.token_to_id(entry.token.replace(" ", "▁")) for entry in result.trace]


@pytest.fixture(params=["picture", "sound"])
def media(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def decoder_calls(cfg, monkeypatch) -> list[tuple[int, int]]:
    """(rows, tokens) of every call of the decoder."""
    decoder, calls = cfg.models.caption_decoder(), []
    forward = decoder.forward

    def counting(ids, *rest):
        calls.append(tuple(ids.shape))
        return forward(ids, *rest)

    monkeypatch.setattr(decoder, "forward", counting)
    return calls


# ---------------------------------------------------------------------------------------------- the reference


@torch.no_grad()
def plain_greedy(method_models, media, max_tokens: int) -> list[int]:
    """The obvious loop: the whole prefix again at every token, no cache, no batch, no guidance."""
    tokenizer, decoder = method_models.tokenizer, method_models.caption_decoder()
    condition = decoder.condition({media.kind: method_models.encode([media])[0].grid[None]}, torch.tensor([0]))
    ids = [method_models.start_token(media.kind)]
    while len(ids) <= max_tokens and ids[-1] != tokenizer.eos:
        logits = decoder(torch.tensor([ids]), condition)[0][0, -1]
        logits[[t for t in tokenizer.special_ids if t != tokenizer.eos or len(ids) == 1]] = -math.inf
        ids.append(int(logits.argmax()))
    return ids[1:]


@torch.no_grad()
def teacher_forced(cfg, media, result: Result) -> dict[str, torch.Tensor]:
    """Every distribution along a finished caption, (positions, vocab) each, recomputed in single passes."""
    method_models, settings = cfg.models, result.settings
    tokenizer, decoder, lm = method_models.tokenizer, method_models.caption_decoder(), method_models.language_model()
    start, tokens = method_models.start_token(media.kind), tokens_of(result, method_models.tokenizer)
    ids = torch.tensor([[start, *tokens[:-1]]])
    condition = decoder.condition({media.kind: method_models.encode([media])[0].grid[None]}, torch.tensor([0]))
    found = {
        "cond": decoder(ids, condition)[0][0].log_softmax(-1),
        "uncond": decoder(ids, condition.removed())[0][0].log_softmax(-1),
    }
    scale, weight = settings["guidance_scale"], settings["lm_weight"]
    if weight:
        captions = [c for c in settings["lm_prompt"].split("|") if c.strip()]
        prompt = [t for c in captions for t in (start, *tokenizer.encode(c), tokenizer.eos)]
        found["lm"] = lm(torch.tensor([[*prompt, start, *tokens[:-1]]]))[0][0, len(prompt) :].log_softmax(-1)
    if settings["alpha"] is None and settings["beta"] is None:
        # as transformers' logits processor writes it
        scores = scale * (found["cond"] - found["uncond"]) + found["uncond"]
        # the language model stands in for a share of p(x)
        scores = scores + weight * (found["lm"] - found["uncond"]) if weight else scores
    else:
        scores = settings["alpha"] * found["cond"] - settings["beta"] * found["uncond"]
        scores = scores + weight * found["lm"] if weight else scores
    scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos]] = -math.inf
    scores[0, tokenizer.eos] = -math.inf
    return found | {"guided": scores.log_softmax(-1)}


# ---------------------------------------------------------------------------------------------------- what is said


def test_without_guidance_the_caption_is_the_plain_greedy_one(cfg, media):
    result = cfg.caption(media, cfg.spec.settings(guidance_scale=1, max_tokens=12))
    expected = plain_greedy(cfg.models, media, 12)
    assert tokens_of(result, cfg.models.tokenizer) == expected
    assert result.caption == cfg.models.tokenizer.decode(expected)


SETTINGS = [
    {"guidance_scale": 1},
    {"guidance_scale": 2},
    {"guidance_scale": 0},
    {"guidance_scale": 3, "lm_weight": 0.5},
    {"guidance_scale": 1, "lm_weight": 1, "lm_prompt": PROMPT},
    {"alpha": 1.5, "beta": -0.5, "lm_weight": 0.3},
    {"alpha": 2, "beta": 0},
]


@pytest.mark.parametrize(
    "values", SETTINGS, ids=lambda v: " ".join(f"{k}={x}" for k, x in v.items() if k != "lm_prompt")
)
def test_the_trace_is_what_the_distributions_say(cfg, media, values):
    """Without an LM `guided` is classifier-free guidance exactly; the greedy choice is its best token."""
    result = cfg.caption(media, cfg.spec.settings(max_tokens=6, **values))
    expected = teacher_forced(cfg, media, result)
    chosen = tokens_of(result, cfg.models.tokenizer)
    assert chosen == expected["guided"].argmax(-1).tolist()
    p, q = Categorical(logits=expected["cond"]), Categorical(logits=expected["uncond"])
    kl, entropy = kl_divergence(p, q), -(expected["guided"].exp() * expected["guided"]).nan_to_num(0).sum(-1)
    for position, entry in enumerate(result.trace):
        assert set(entry.alternatives) == set(expected)
        assert entry.position == position
        assert entry.kl == pytest.approx(kl[position].item(), abs=1e-4)
        assert entry.entropy == pytest.approx(entropy[position].item(), abs=1e-3)
        for name, logp in expected.items():
            assert getattr(entry, name) == pytest.approx(logp[position, chosen[position]].item(), abs=1e-3)
            best = logp[position].topk(10).values.tolist()
            assert [a.logprob for a in entry.alternatives[name]] == pytest.approx(best, abs=1e-3)
    assert (result.trace[0].lm is not None) == ("lm" in expected)


def test_the_prompt_is_what_the_language_model_reads(cfg, picture):
    settings = cfg.spec.settings(lm_weight=0.5, max_tokens=3)
    without, with_prompt = (cfg.caption(picture, settings.replace(lm_prompt=p)).trace[0] for p in ("", PROMPT))
    assert without.alternatives["lm"] != with_prompt.alternatives["lm"]
    assert without.alternatives["cond"] == with_prompt.alternatives["cond"]


def test_a_prompt_too_long_for_the_language_model_loses_its_first_captions(cfg, picture, monkeypatch):
    lm, seen = cfg.models.language_model(), []
    forward = lm.forward
    monkeypatch.setattr(
        lm, "forward", lambda ids, past, mask: seen.append(mask.sum(1).max().item()) or forward(ids, past, mask)
    )
    cfg.caption(picture, cfg.spec.settings(lm_weight=0.5, lm_prompt=" | ".join([PROMPT] * 20), no_repeat=1))
    assert seen[0] > 20
    assert max(seen) <= lm.config.context


def test_a_prompt_cannot_hold_special_tokens(cfg):
    tokenizer = cfg.models.tokenizer
    ids = tokenizer.encode("a <eos> dog <pad> <picture>")
    assert not {*ids} & {*tokenizer.special_ids}
    assert tokenizer.decode(ids) == "a eos dog pad picture"


# --------------------------------------------------------------------------------------------------- what is run


def test_without_guidance_one_branch_is_decoded(cfg, picture, decoder_calls):
    result = cfg.caption(picture, cfg.spec.settings(guidance_scale=1, max_tokens=5))
    length = len(result.trace)
    assert decoder_calls == [(1, 1)] * length + [(1, length)]  # the last one fills the trace
    assert result.calls == {"decoder": length + 1}


def test_with_guidance_both_branches_of_all_candidates_share_a_batch(cfg, picture, decoder_calls):
    result = cfg.caption(picture, cfg.spec.settings(guidance_scale=2, num_candidates=3, max_tokens=5))
    assert decoder_calls[0] == (6, 1)
    assert all(rows % 2 == 0 and length == 1 for rows, length in decoder_calls)
    assert result.calls == {"decoder": len(decoder_calls)}


def test_rows_that_have_ended_leave_the_batch(cfg, picture, sound, decoder_calls):
    lengths = (2, 5, 3)
    values = [
        cfg.spec.settings(guidance_scale=2, lm_weight=0.3, max_tokens=n, forced=dict.fromkeys(range(n), " dog"))
        for n in lengths
    ]
    results = cfg.caption_batch([picture, sound, sound], values)
    assert decoder_calls == [(6, 1), (6, 1), (4, 1), (2, 1), (2, 1)]
    assert [len(r.trace) for r in results] == [2, 5, 3]


@pytest.mark.parametrize("scale", [1, 2])
def test_without_a_trace_the_caption_is_the_same(cfg, picture, sound, scale):
    settings = cfg.spec.settings(guidance_scale=scale, num_candidates=2)
    traced, untraced = (cfg.caption_batch([picture, sound], [s, s]) for s in (settings, settings.untraced()))
    assert [r.trace for r in untraced] == [[], []]
    assert [[c.caption for c in r.candidates] for r in traced] == [[c.caption for c in r.candidates] for r in untraced]
    assert [r.candidates[0].logprob for r in traced] == pytest.approx(
        [r.candidates[0].logprob for r in untraced], abs=1e-4
    )
    assert all(r.trace for r in traced)


def test_in_a_mixed_batch_only_guided_rows_have_a_second_branch(cfg, picture, sound, decoder_calls):
    values = [cfg.spec.settings(guidance_scale=scale, max_tokens=4) for scale in (1, 2, 1)]
    cfg.caption_batch([picture, sound, sound], values)
    assert decoder_calls[0] == (4, 1)


def test_the_language_model_runs_only_when_it_is_asked(cfg, picture):
    assert "language model" not in cfg.caption(picture, cfg.spec.settings(max_tokens=2)).calls
    assert cfg.caption(picture, cfg.spec.settings(lm_weight=0.1, max_tokens=2)).calls["language model"] == 2


# ------------------------------------------------------------------------------------------- batch, stream, seeds

ROWS = [
    ("image", 1, {"guidance_scale": 1}),
    ("audio", 1, {"guidance_scale": 2, "max_tokens": 5}),
    ("image", 2, {"guidance_scale": 3, "lm_weight": 0.5, "lm_prompt": PROMPT, "num_candidates": 3}),
    ("audio", 2, {"guidance_scale": 0.5, "lm_weight": 1.0, "temperature": 1.0, "seed": 3}),
    ("image", 1, {"guidance_scale": 1, "num_candidates": 2, "temperature": 0.5, "max_tokens": 7}),
    ("audio", 1, {"guidance_scale": 5, "no_repeat": 2, "forced": {0: " a", 1: " dog"}}),
    ("image", 2, {"alpha": 2, "beta": 0, "max_tokens": 1}),
]


def test_a_batch_of_different_rows_equals_single_runs(cfg, draw, play):
    media = [{"image": draw, "audio": play}[kind](100 + seed) for kind, seed, _ in ROWS]
    settings = [cfg.spec.settings(**({"max_tokens": 9} | values)) for _, _, values in ROWS]
    together = cfg.caption_batch(media, settings)
    for item, values, result in zip(media, settings, together, strict=True):
        cfg.models.encoder.known.clear()  # what was encoded in the batch is not to help
        close(content(cfg.caption(item, values)), content(result))


def test_an_empty_batch_is_no_work(cfg):
    assert cfg.caption_batch([], []) == []


@pytest.mark.parametrize(
    "values", [{"guidance_scale": 1}, {"guidance_scale": 2, "lm_weight": 0.2, "num_candidates": 2}]
)
def test_a_stream_ends_with_what_caption_gives(cfg, media, values):
    settings = cfg.spec.settings(max_tokens=6, **values)
    *steps, last = cfg.stream(media, settings)
    assert content(last.result) == content(cfg.caption(media, settings))
    assert last.trace == last.result.trace
    assert all(step.result is None for step in steps)
    assert [step.position for step in steps] == sorted(step.position for step in steps)
    for before, after in itertools.pairwise(steps):
        assert [t.text for t in before.tokens] == [t.text for t in after.tokens][: len(before.tokens)]
        assert len(before.others) == settings["num_candidates"] - 1
    assert {t.state for step in [*steps, last] for t in step.tokens} == {"final"}
    assert all(0 <= t.probability <= 1 for step in steps for t in step.tokens)


def test_every_step_is_traced_as_it_happens(cfg, picture):
    steps = list(cfg.stream(picture, cfg.spec.settings(guidance_scale=2, max_tokens=5)))
    final = steps[-1].result.trace
    for step in steps[:-1]:
        assert step.trace == final[: len(step.trace)]
        assert len(step.trace) == step.position > 0


def test_the_same_seed_gives_the_same_caption(cfg, media):
    settings = cfg.spec.settings(temperature=1.5, num_candidates=2, max_tokens=8)
    assert content(cfg.caption(media, settings)) == content(cfg.caption(media, settings))


def test_another_seed_gives_another_caption_when_words_are_drawn(cfg, media):
    settings = [cfg.spec.settings(temperature=2, max_tokens=8, seed=seed) for seed in range(4)]
    assert len({r.caption for r in cfg.caption_batch([media] * 4, settings)}) > 1


def test_the_seed_does_nothing_when_the_best_word_is_taken(cfg, media):
    settings = [cfg.spec.settings(max_tokens=8, seed=seed) for seed in range(3)]
    assert len({r.caption for r in cfg.caption_batch([media] * 3, settings)}) == 1


# ------------------------------------------------------------------------------------------------------ candidates


def test_candidates_are_ranked_by_the_ranker(cfg, media):
    result = cfg.caption(media, cfg.spec.settings(num_candidates=5, max_tokens=8))
    ranker = cfg.models.ranker(media.kind)
    scores = (ranker.embed_text([c.caption for c in result.candidates]) @ ranker.embed_media([media])[0]).tolist()
    assert [c.score for c in result.candidates] == pytest.approx(scores, abs=1e-4)
    # the same words in another row differ by a last bit
    assert scores == pytest.approx(sorted(scores, reverse=True), abs=1e-6)
    assert result.caption == result.candidates[0].caption
    assert cfg.models.tokenizer.decode(tokens_of(result, cfg.models.tokenizer)) == result.caption
    assert result.candidates[0].logprob == pytest.approx(sum(entry.guided for entry in result.trace), abs=1e-3)


def test_the_greedy_caption_is_one_of_the_candidates(cfg, media):
    alone = cfg.caption(media, cfg.spec.settings(max_tokens=8))
    assert (alone.candidates[0].score, len(alone.candidates)) == (None, 1)
    many = cfg.caption(media, cfg.spec.settings(max_tokens=8, num_candidates=4))
    assert alone.caption in [c.caption for c in many.candidates]
    assert len({c.caption for c in many.candidates}) > 1


# ------------------------------------------------------------------------------------------------------- controls


@pytest.mark.parametrize("most", [1, 2, 13, 40])
def test_a_caption_ends_within_max_tokens(cfg, media, most):
    results = cfg.caption_batch(
        [media] * 3, [cfg.spec.settings(max_tokens=most, guidance_scale=scale) for scale in (0, 1, 5)]
    )
    assert all(1 <= len(r.trace) <= most for r in results)


def ends(control) -> list:
    """Both ends of a control's range, and `auto` where it may decide by itself."""
    match control.kind:
        case "number":
            return [control.low, control.high] + [None] * control.optional
        case "choice":
            return list(control.choices)
        case "switch":
            return [False, True]
    return ["", LONG_PROMPT]


def sound_result(result: Result, settings) -> None:
    """What holds for every caption, whatever the controls say."""
    assert 1 <= len(result.trace) <= settings["max_tokens"]
    assert len(result.candidates) == settings["num_candidates"]
    for entry in result.trace:
        assert all(math.isfinite(value) for value in (entry.cond, entry.uncond, entry.guided, entry.kl, entry.entropy))
        assert entry.kl > -1e-5
        assert all(len(some) == 10 or name == "guided" for name, some in entry.alternatives.items())
    for candidate in result.candidates:
        assert not {"<", ">", "▁"} & set(candidate.caption)
    assert result.settings == to_json(settings)


def test_every_control_works_at_both_ends_of_its_range(cfg, media):
    """A batch is as long as its longest row, so the longest captions go apart."""
    settings = [
        cfg.spec.settings(**({"max_tokens": 5} | {c.name: value})) for c in cfg.spec.controls for value in ends(c)
    ]
    for some in ([s for s in settings if s["max_tokens"] <= 5], [s for s in settings if s["max_tokens"] > 5]):
        for result, values in zip(cfg.caption_batch([media] * len(some), some), some, strict=True):
            sound_result(result, values)


@pytest.mark.slow
def test_every_combination_of_the_controls_ends_works(cfg, media):
    controls = [c for c in cfg.spec.controls if c.name not in ("seed", "decoding", "num_beams")]
    grid = [
        dict(zip([c.name for c in controls], values, strict=True)) for values in itertools.product(*map(ends, controls))
    ]
    for start in range(0, len(grid), 8):
        settings = [cfg.spec.settings(**values) for values in grid[start : start + 8]]
        for result, values in zip(cfg.caption_batch([media] * len(settings), settings), settings, strict=True):
            sound_result(result, values)


def test_no_special_token_is_ever_said_or_offered(cfg, media):
    result = cfg.caption(media, cfg.spec.settings(temperature=2, num_candidates=16, max_tokens=12))
    sound_result(result, cfg.spec.settings(temperature=2, num_candidates=16, max_tokens=12))
    for entry in result.trace:
        offered = {a.token for a in entry.alternatives["guided"]} & {
            t for t in cfg.models.tokenizer.tokenizer.get_vocab() if t[0] == "<"
        }
        assert offered <= ({"<eos>"} if entry.position else set())


def test_no_run_of_tokens_occurs_twice_when_that_is_forbidden(cfg, media):
    settings = [
        cfg.spec.settings(guidance_scale=scale, no_repeat=size, max_tokens=20) for scale in (1, 5) for size in (1, 2, 3)
    ]
    for result, values in zip(cfg.caption_batch([media] * len(settings), settings), settings, strict=True):
        tokens, size = [entry.token for entry in result.trace], values["no_repeat"]
        runs = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
        assert len(runs) == len(set(runs))


@pytest.mark.parametrize(("size", "forbidden"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_repeat_is_impossible_only_from_the_chosen_length_on(cfg, picture, size, forbidden):
    again = {0: " a", 1: " dog", 2: " a", 3: " dog"}
    result = cfg.caption(picture, cfg.spec.settings(no_repeat=size, max_tokens=5, forced=again))
    assert (result.trace[3].guided == -math.inf) == forbidden


# --------------------------------------------------------------------------------------------------- forced tokens


def test_a_caption_forked_at_a_word_keeps_what_stands_before(cfg, media):
    settings = cfg.spec.settings(max_tokens=8, forced={0: " a", 1: " black"})
    before = cfg.caption(media, settings)
    other = next(
        a.token for a in before.trace[2].alternatives["guided"] if a.token not in (before.trace[2].token, " ", "<eos>")
    )
    after = cfg.caption(media, settings.replace(forced={0: " a", 1: " black", 2: other}))
    assert [entry.token for entry in after.trace[:3]] == [" a", " black", other]
    assert after.caption.startswith("a black")
    close(content(before)["trace"][:2], content(after)["trace"][:2])


def test_forcing_what_would_be_said_anyway_changes_nothing(cfg, media):
    settings = cfg.spec.settings(max_tokens=8)
    result = cfg.caption(media, settings)
    same = {entry.position: entry.token for entry in result.trace if entry.token.strip()}
    close(content(result)["trace"], content(cfg.caption(media, settings.replace(forced=same)))["trace"])


def test_every_candidate_begins_with_the_forced_words(cfg, picture):
    result = cfg.caption(picture, cfg.spec.settings(num_candidates=4, max_tokens=6, forced={0: " two", 1: " dogs"}))
    assert all(c.caption.startswith("two dogs") for c in result.candidates)


def test_a_word_of_several_pieces_takes_as_many_positions(cfg, picture):
    pieces = [cfg.models.tokenizer.piece(t) for t in cfg.models.tokenizer.encode("xylophone")]
    assert len(pieces) > 1
    result = cfg.caption(picture, cfg.spec.settings(max_tokens=8, forced={1: "xylophone"}))
    assert [entry.token for entry in result.trace[1 : 1 + len(pieces)]] == pieces
    assert "xylophone" in result.caption


@pytest.mark.parametrize("word", ["ж", "<mask>", "<picture>", "<unk>", "..."])
def test_an_unknown_forced_word_is_refused(cfg, picture, word):
    with pytest.raises(SettingsError, match="is not known to this model"):
        cfg.caption(picture, cfg.spec.settings(forced={0: word}))


def test_a_forced_end_ends_the_caption(cfg, picture):
    result = cfg.caption(picture, cfg.spec.settings(forced={0: " a", 1: " dog", 2: "<eos>"}))
    assert (result.caption, len(result.trace)) == ("a dog", 3)


def test_a_forced_word_past_the_end_is_refused(cfg, picture):
    with pytest.raises(SettingsError, match="forced position 5 is past the end"):
        cfg.caption(picture, cfg.spec.settings(max_tokens=5, forced={5: " dog"}))


# A number such as "2" is two tokens, the first of which is shown as a lone space: a caption with one can be forked too.
def test_the_piece_before_a_number_can_be_forced(cfg, picture):
    result = cfg.caption(picture, cfg.spec.settings(max_tokens=6, forced={0: " ", 1: "2", 2: " dogs"}))
    assert result.caption.startswith("2 dogs")


# ---------------------------------------------------------------------------------------------------- the record


def test_a_result_says_what_it_came_from(cfg, media):
    media_notes = list(media.notes)
    result = cfg.caption(media, cfg.spec.settings(lm_weight=0.5, num_candidates=2, max_tokens=3, seed=7))
    assert (result.method, result.profile, result.seed, result.notes) == ("cfg", "embedded", 7, media_notes)
    assert {"cfg", "caption-lm", f"{media.kind}-encoder", f"{media.kind}-ranker"} <= set(result.weights)
    assert all(len(value) == 12 for value in result.weights.values())
    assert {"encode", "decode", "trace", "rank"} <= set(result.seconds)
    assert all(value >= 0 for value in result.seconds.values())

"""Method 2: the cache moves, the weights do not, and with nothing to pull at it the language model says what it
would have said.
"""

import gc
import itertools
import math
from pathlib import Path

import pytest
import torch

from captioners import registry
from captioners.lab import Lab
from captioners.methods.guidance_loss import GuidanceLoss, SteeredCaption
from captioners.methods.text_scorer import TextScorer
from captioners.nets.context_cache import ContextCache
from captioners.nets.language_model import CausalLM, CausalLMConfig
from captioners.run_record import RunRecord

SENTENCES = Path(__file__).parents[1] / "data" / "audibility.tsv"


ENDS = {"prompt": ("a", "|the sound of")}


@pytest.fixture(scope="module")
def method(embedded):
    return registry.load("classifier", embedded)


def quick(method, **values):
    return method.spec.settings(**{"max_tokens": 4, "num_steps": 2, "top_k": 64, **values})


def language_model_says(method, kind: str | None, tokens: int) -> str:
    """Greedy decoding without a cache, written out."""
    method_models = method.models
    t, lm, ids = method_models.tokenizer, method_models.language_model(), method_models.text_start(kind)
    said = []
    for position in range(tokens):
        scores = lm(torch.tensor([ids + said]))[0][0, -1].clone()
        scores[[i for i in t.special_ids if i != t.eos or position == 0]] = -torch.inf
        said.append(int(scores.argmax()))
        if said[-1] == t.eos:
            break
    return t.decode(said)


# ---------------------------------------------------------------------------------------------------- the method


@pytest.mark.parametrize("off", [{"guidance_scale": 1}, {"classifier_weight": 0, "relevance_weight": 0}], ids=str)
def test_with_nothing_to_pull_it_says_what_the_language_model_says(method, picture, sound, off):
    result = method.caption(picture, quick(method, max_tokens=12, **off))
    assert result.caption == language_model_says(method, None, 12)
    for media in (picture, sound):
        told = method.caption(media, quick(method, max_tokens=12, start="modality", **off))
        assert told.caption == language_model_says(method, media.kind, 12)
    assert all(t.cond == pytest.approx(t.uncond) and t.steps == [] for t in result.trace)


def test_unguided_is_the_same_run_without_the_classifier(method, sound):
    """λ1 = 0 and relevance kept, whichever way it is said; the language model alone is γ = 1."""
    settings = quick(method, guidance_scale=3)
    plain = method.caption(sound, method.spec.without_guidance(settings))
    none = method.caption(sound, settings.replace(guide="none"))
    assert plain.settings["guidance_scale"] == 3
    assert [t.token for t in plain.trace] == [t.token for t in none.trace]
    moved = [step for entry in plain.trace for step in entry.steps]
    assert moved and {step["classifier"] for step in moved} == {0.0}
    assert any(step["relevance"] > 0 for step in moved)
    assert method.caption(sound, settings.replace(guidance_scale=1)).trace[0].steps == []


@pytest.mark.parametrize(
    ("guide", "asked"), [("auto", "audio"), ("audibility", "audio"), ("visibility", "image"), ("none", "audio")]
)
def test_the_guide_can_be_that_of_the_other_modality(method, sound, monkeypatch, guide, asked):
    classifier, questions = type(method.models).classifier, []
    monkeypatch.setattr(
        type(method.models), "classifier", lambda self, kind: questions.append(kind) or classifier(self, kind)
    )
    result = method.caption(sound, quick(method, guide=guide, max_tokens=2))
    assert set(questions) == {asked}
    assert {"audio": "audibility", "image": "visibility"}[asked] in result.weights


def test_inputs_with_different_guides_share_a_batch(method, picture, sound):
    media, guides = [picture, sound, sound], ["audibility", "visibility", "audibility"]
    settings = [quick(method, guide=g, max_tokens=2) for g in guides]
    for m, s, result in zip(media, settings, method.caption_batch(media, settings), strict=True):
        alone = method.caption(m, s)
        assert result.caption == alone.caption
        assert [t.classifier for t in result.trace] == pytest.approx([t.classifier for t in alone.trace], abs=1e-3)


def test_a_picture_s_card_has_the_guide_s_word_and_a_sound_s_the_judge_s(method, embedded, picture, sound):
    lab = Lab(embedded)
    seen, heard = (lab.caption(m, "classifier", quick(method, max_tokens=3)) for m in (picture, sound))
    assert seen.scores["visibility"].value == pytest.approx(
        float(method.models.classifier("image").probability([seen.caption])[0]), abs=1e-5
    )
    assert "the guide itself" in seen.scores["visibility"].encoder and "audibility" not in seen.scores
    assert heard.scores["audibility"].value == pytest.approx(
        float(embedded.judges.audibility().probability([heard.caption])[0]), abs=1e-5
    )
    assert "visibility" not in heard.scores and set(method.spec.card_scores) == {"audibility", "visibility"}


@pytest.mark.parametrize("route", ["fast", "faithful"])
def test_the_loss_falls_along_the_steps(method, sound, route):
    result = method.caption(sound, quick(method, num_steps=5, route=route))
    curves = [[step["loss"] for step in entry.steps] for entry in result.trace]
    assert all(1 <= len(c) <= 5 for c in curves if c)
    assert sum(min(c) < c[0] for c in curves) >= 0.5 * len(curves)


def test_every_step_reports_its_loss_in_parts(method, sound):
    result = method.caption(sound, quick(method))
    for entry in result.trace:
        assert -30 < entry.classifier <= 0
        for step in entry.steps:
            assert step["loss"] == pytest.approx(step["fluency"] + step["classifier"] + step["relevance"], abs=1e-4)
            assert 0 < step["probability"] <= 1
            assert step["classifier"] == pytest.approx(-0.6 * math.log(step["probability"]), abs=1e-4)


def test_more_guidance_moves_the_distribution_further(method, sound):
    weak, strong = method.caption_batch([sound] * 2, [quick(method, max_tokens=1, guidance_scale=s) for s in (1.1, 2)])
    assert 0 < weak.trace[0].kl < strong.trace[0].kl


def test_the_classifier_pulls_towards_what_it_likes(method, picture):
    """A picture's caption is seldom audible by itself."""
    common = {"max_tokens": 1, "relevance_weight": 0.1, "guide": "audibility"}
    settings = [quick(method, **common, classifier_weight=weight) for weight in (0, 2)]
    without, with_it = method.caption_batch([picture] * 2, settings)
    assert with_it.trace[0].steps[-1]["probability"] > without.trace[0].steps[-1]["probability"]


def test_no_weight_changes(method, picture, sound):
    method_models = method.models
    parts = [method_models.language_model()] + [
        p.net for kind in ("image", "audio") for p in (method_models.ranker(kind), method_models.classifier(kind))
    ]
    before = [[p.clone() for p in part.parameters()] for part in parts]
    method.caption_batch([picture, sound], [quick(method, guidance_scale=5)] * 2)
    for part, kept in zip(parts, before, strict=True):
        assert all(torch.equal(p, k) for p, k in zip(part.parameters(), kept, strict=True))
        assert all(p.grad is None and not p.requires_grad for p in part.parameters())


def test_a_stream_that_is_left_early_holds_nothing(method, picture):
    def moving() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) and (o.requires_grad or o.grad_fn is not None) for o in gc.get_objects())

    before = moving()
    stream = method.stream(picture, quick(method))
    next(stream)
    stream.close()
    del stream
    assert moving() <= before
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_a_batch_equals_single_runs(method, picture, sound):
    media = [picture, sound, picture, sound]
    settings = [
        quick(method),
        quick(method, guidance_scale=3, prompt="there is"),
        quick(method, num_candidates=2, seed=4),
        quick(method, route="faithful", num_steps=1, max_tokens=2),
    ]
    together = method.caption_batch(media, settings)
    for result, m, s in zip(together, media, settings, strict=True):
        alone = method.caption(m, s)
        assert (result.caption, [c.caption for c in result.candidates]) == (
            alone.caption,
            [c.caption for c in alone.candidates],
        )


def test_the_last_step_of_a_stream_is_the_result(method, sound):
    steps = list(method.stream(sound, quick(method)))
    assert steps[-1].result.caption == method.caption(sound, quick(method)).caption
    assert [len(s.tokens) for s in steps[:-1]] == list(range(1, len(steps)))


def test_the_prompt_begins_the_caption_and_may_be_longer_than_the_model(method, picture):
    assert method.caption(picture, quick(method, prompt="a photo of")).caption.startswith("a photo of")
    assert method.caption(picture, quick(method, prompt="a dog and " * 60)).caption.startswith("a dog and a dog and")


def test_pictures_and_sounds_may_have_prompts_of_their_own(method, picture, sound):
    seen, heard = method.caption_batch(
        [picture, sound], [quick(method, prompt="a photo of | the sound of", max_tokens=2)] * 2
    )
    assert seen.caption.startswith("a photo of") and heard.caption.startswith("the sound of")


def test_forced_tokens_stand_where_they_were_put(method, picture):
    trace = method.caption(picture, quick(method).replace(forced={1: " dog"})).trace
    assert trace[1].token == " dog"


def test_a_guided_caption_says_no_pair_of_tokens_twice(method, picture):
    tokens = [
        t.token
        for t in method.caption(
            picture, quick(method, max_tokens=16, num_steps=1, guidance_scale=5, fluency_weight=0)
        ).trace
    ]
    pairs = list(itertools.pairwise(tokens))
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize(("size", "forbidden"), [(0, False), (2, True), (3, False)])
def test_a_run_may_be_said_twice_where_that_is_allowed(method, picture, size, forbidden):
    again = {0: " a", 1: " dog", 2: " a", 3: " dog"}
    result = method.caption(picture, quick(method, no_repeat=size, num_steps=1).replace(forced=again))
    assert (result.trace[3].uncond == -math.inf) == forbidden


@pytest.mark.parametrize("answer", [math.nan, math.inf, 0.0])
def test_a_classifier_that_talks_nonsense_breaks_nothing(method, sound, monkeypatch, answer):
    class Nonsense:
        def probability(self, texts):
            return torch.full((len(texts),), answer)

    monkeypatch.setattr(type(method.models), "classifier", lambda self, kind: Nonsense())
    result = method.caption(sound, quick(method, max_tokens=2))
    assert result.caption
    assert all(math.isfinite(t.guided) and math.isfinite(t.cond) for t in result.trace)


@pytest.mark.parametrize(
    "values",
    [
        {c.name: v}
        for c in registry.find("classifier").spec.controls
        if c.name != "seed"
        for v in (c.choices[1:] or ENDS.get(c.name, (c.low, c.high)))
    ],
    ids=str,
)
def test_every_control_works_at_both_ends(method, picture, values):
    limits = {
        "num_candidates": min(values.get("num_candidates", 1), 3),
        "max_tokens": min(values.get("max_tokens", 2), 3),
    }
    result = method.caption(picture, quick(method, **{**values, **limits}))
    assert result.caption
    assert "<" not in result.caption


def test_the_shipped_classifier_tells_audible_from_silent(method):
    rows = [line.split("\t") for line in SENTENCES.read_text().splitlines()]
    said = method.models.classifier("audio").probability([text for text, _ in rows]) > 0.5
    right = [bool(s) == (label == "1") for s, (_, label) in zip(said.tolist(), rows, strict=True)]
    assert sum(right) / len(right) >= 0.85


# ------------------------------------------------------------------------------------------------------ its parts


def test_the_losses_are_the_papers(method, sound):
    """By hand, over two candidates: λ0 · CE(moved, untouched), −λ1 · log of the expected h_a, λ2 · CE(moved,
    target).
    """
    settings = quick(method, fluency_weight=0.5, classifier_weight=2, relevance_weight=3)
    row = SteeredCaption(0, settings, 0.0, [], {}, torch.Generator())
    untouched, moved = torch.tensor([[0.2, 0.3, 0.5]]).log(), torch.tensor([[0.6, 0.2, 0.2]]).log()
    goal = GuidanceLoss([row], TextScorer(method.models, [sound], ["audio"], {}, RunRecord()), untouched)
    goal.tokens, goal.present = torch.tensor([[0, 1]]), torch.tensor([[True, True]])
    goal.log_yes, goal.target = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.25, 0.75]])
    losses = {name: value.item() for name, value in goal.losses(moved).items()}
    assert losses["fluency"] == pytest.approx(
        -0.5 * (0.2 * math.log(0.6) + 0.3 * math.log(0.2) + 0.5 * math.log(0.2)), abs=1e-5
    )
    assert losses["classifier"] == pytest.approx(-2 * math.log(0.75 * 0.9 + 0.25 * 0.1), abs=1e-5)
    assert losses["relevance"] == pytest.approx(-3 * (0.25 * math.log(0.6) + 0.75 * math.log(0.2)), abs=1e-5)


def test_the_fluency_term_can_be_the_divergence_of_the_moved_from_the_untouched(method, sound):
    """KL(moved ‖ untouched) over what can be said; each caption has its own direction, and gradients are numbers."""
    rows = [
        SteeredCaption(0, quick(method, fluency=f, fluency_weight=1), 0.0, [], {}, torch.Generator())
        for f in ("kl", "ce")
    ]
    untouched = torch.tensor([[0.2, 0.3, 0.5, 0.0]] * 2).log()
    goal = GuidanceLoss(rows, TextScorer(method.models, [sound], ["audio"], {}, RunRecord()), untouched)
    goal.tokens, goal.present = torch.tensor([[0, 1]] * 2), torch.ones(2, 2, dtype=torch.bool)
    goal.log_yes, goal.target = torch.zeros(2, 2), torch.full((2, 2), 0.5)
    scores = torch.tensor([[0.6, 0.2, 0.2, 1.0]] * 2).log().requires_grad_()
    losses = goal.losses(scores.masked_fill(torch.isneginf(untouched), -math.inf).log_softmax(-1))
    kl = 0.6 * math.log(3) + 0.2 * math.log(2 / 3) + 0.2 * math.log(0.4)
    assert losses["fluency"].tolist() == pytest.approx([kl, -0.2 * math.log(0.6) - 0.8 * math.log(0.2)], abs=1e-5)
    losses["loss"].sum().backward()
    assert torch.isfinite(scores.grad).all() and (scores.grad[0, :3] != 0).any()


@pytest.mark.parametrize("target", ["bayes", "zerocap"])
def test_the_target_weighs_the_language_model_against_the_match_or_is_zerocap_s(method, sound, target):
    method_models, t = method.models, method.models.tokenizer
    reader = TextScorer(method_models, [sound], ["audio"], {}, RunRecord())
    row = SteeredCaption(
        0, quick(method, top_k=16, route="faithful", target=target), 0.0, t.encode("a"), {}, torch.Generator()
    )
    logp = method_models.language_model()(torch.tensor([[*method_models.text_start(None), *row.prompt]]))[0][
        :, -1
    ].log_softmax(-1)
    goal = GuidanceLoss([row], reader, logp)
    goal.score_candidates(logp)
    texts = [t.decode([*row.prompt, token]) for token in logp[0].topk(16).indices.tolist()]
    ranker = method_models.ranker("audio")
    similar = ranker.embed_text([ranker.prompt + x for x in texts]) @ ranker.embed_media([sound])[0]
    prior = logp[0].topk(16).values if target == "bayes" else torch.zeros(16)
    expected = (prior + similar / reader.temperature(0)).softmax(-1)
    assert torch.allclose(goal.target[0], expected, atol=1e-4)


def small_lm(layers: int, scale: float = 1.0) -> CausalLM:
    torch.manual_seed(0)
    lm = CausalLM(CausalLMConfig(vocab=50, dim=32, layers=layers, heads=2, dropout=0.0)).eval().requires_grad_(False)
    for block in lm.blocks:
        block.attention.key_value.weight *= scale
    return lm


@pytest.mark.parametrize(("layers", "scale"), [(2, 1.0), (6, 1.0), (2, 20.0)])
def test_a_step_is_a_share_of_the_caches_own_length(layers, scale):
    context = ContextCache(small_lm(layers, scale), [[1, 2, 3, 4]], 0, "cpu")
    moving = context.moving(torch.tensor([0]), torch.tensor([0.1]))
    with torch.enable_grad():
        loss = -moving.scores().log_softmax(-1)[:, 7] * 1e6  # so large a gradient that its own size hardly counts
    moving.step(loss, torch.tensor([True]))
    for delta, pair in zip(moving.delta[1::2], context.past, strict=True):
        length = pair[1].square().sum(-1).mean().sqrt()
        share = (delta.norm() / length).item()
        assert 0.1 * 12 / layers < share < 0.1 * 12 / layers * 10  # |gradient| ** 0.1 above the plain share


def test_padding_changes_no_move():
    lm = small_lm(2)
    alone, together = (ContextCache(lm, starts, 0, "cpu") for starts in ([[1, 2, 3]], [[5, 6, 7, 8, 9], [1, 2, 3]]))
    scores = []
    for context, row in ((alone, 0), (together, 1)):
        moving = context.moving(torch.tensor([row]), torch.tensor([0.3]))
        for _ in range(3):
            with torch.enable_grad():
                loss = -moving.scores().log_softmax(-1)[:, 7]
            moving.step(loss, torch.tensor([True]))
        scores.append(moving.scores()[0])
    assert torch.allclose(*scores, atol=1e-4)


def test_a_row_that_does_not_move_stays_and_a_gradient_that_is_no_number_moves_nothing():
    context = ContextCache(small_lm(2), [[1, 2, 3], [4, 5, 6]], 0, "cpu")
    moving = context.moving(torch.tensor([0, 1]), torch.tensor([0.3, 0.3]))
    with torch.enable_grad():
        logp = moving.scores().log_softmax(-1)
        loss = -logp[:, 7] * torch.tensor([1.0, math.nan])
    moving.step(loss, torch.tensor([False, True]))
    assert all((d == 0).all() for d in moving.delta)


@pytest.mark.parametrize(("no_repeat", "possible"), [(2, False), (0, True)])
def test_punctuation_does_not_follow_punctuation(method, no_repeat, possible):
    """Unless the papers' own rule is asked for, which forbids nothing."""
    ids = [method.models.tokenizer.token_id(piece) for piece in (",", ":", "-")]
    caption = SteeredCaption(0, quick(method, no_repeat=no_repeat), 0.0, [], {}, torch.Generator(), ids=ids[:1])
    allowed = method._allowed([caption], torch.zeros(1, len(method.models.tokenizer)), position=1)
    assert {*ids} <= method.punctuation
    assert torch.isfinite(allowed[0, ids]).all() == possible
    assert torch.isfinite(allowed[0, method.models.tokenizer.eos])

"""Method 2: the cache moves, the weights do not, and with nothing to pull at it the language model says what it would have said."""

import gc
from pathlib import Path

import pytest
import torch

from captioners import registry
from captioners.methods.classifier import Goal

SENTENCES = Path(__file__).parent / "data" / "audibility.tsv"


@pytest.fixture(scope="module")
def method(embedded):
    return registry.load("classifier", embedded)


def quick(method, **values):
    return method.spec.settings(**{"max_tokens": 6, "num_steps": 2, **values})


def language_model_says(method, tokens: int) -> str:
    """Greedy decoding without a cache, written out."""
    players = method.players
    t, lm = players.tokenizer, players.language_model()
    ids = [t.eos, t.bos]
    for position in range(tokens):
        scores = lm(torch.tensor([ids]))[0][0, -1].clone()
        scores[[i for i in t.special_ids if i != t.eos or position == 0]] = -torch.inf
        ids.append(int(scores.argmax()))
        if ids[-1] == t.eos:
            break
    return t.decode(ids[2:])


@pytest.mark.parametrize("off", [{"guidance_scale": 1}, {"classifier_weight": 0, "relevance_weight": 0}])
def test_with_nothing_to_pull_it_says_what_the_language_model_says(method, picture, off):
    result = method.caption(picture, quick(method, max_tokens=12, **off))
    assert result.caption == language_model_says(method, 12)
    assert all(t.cond == pytest.approx(t.uncond) for t in result.trace)


def test_the_loss_falls_along_the_steps(method, sound):
    result = method.caption(sound, quick(method, num_steps=5, route="faithful", top_k=32))
    curves = [[step["loss"] for step in entry.steps] for entry in result.trace if len(entry.steps) == 5]
    assert curves
    assert sum(c[-1] < c[0] for c in curves) >= 0.8 * len(curves)


def test_the_moved_distribution_differs_from_the_untouched_one(method, sound):
    result = method.caption(sound, quick(method))
    assert any(abs(t.cond - t.uncond) > 1e-3 for t in result.trace)
    assert all(t.kl >= 0 for t in result.trace)


def test_no_weight_changes(method, picture, sound):
    players = method.players
    parts = [players.language_model(), players.ranker("image").net, players.classifier("audio").net]
    before = [[p.clone() for p in part.parameters()] for part in parts]
    for media in (picture, sound):
        method.caption(media, quick(method, guidance_scale=5))
    for part, kept in zip(parts, before, strict=True):
        assert all(torch.equal(p, k) for p, k in zip(part.parameters(), kept, strict=True))
        assert all(p.grad is None and not p.requires_grad for p in part.parameters())


def test_a_stream_that_is_left_early_holds_nothing(method, picture):
    def moving() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) and o.requires_grad for o in gc.get_objects())

    before = moving()
    stream = method.stream(picture, quick(method))
    next(stream)
    stream.close()
    del stream
    assert moving() <= before


def test_a_batch_equals_single_runs(method, picture, sound):
    media = [picture, sound, picture]
    settings = [quick(method), quick(method, guidance_scale=3, prompt="there is"), quick(method, num_candidates=2, seed=4)]
    together = method.caption_batch(media, settings)
    for result, m, s in zip(together, media, settings, strict=True):
        alone = method.caption(m, s)
        assert (result.caption, [c.caption for c in result.candidates]) == (alone.caption, [c.caption for c in alone.candidates])


def test_the_prompt_begins_the_caption(method, picture):
    assert method.caption(picture, quick(method, prompt="a photo of")).caption.startswith("a photo of")


@pytest.mark.parametrize(
    "values",
    [
        *({c.name: v} for c in registry.find("classifier").spec.controls if c.kind == "number" for v in (c.low, min(c.high, 64))),
        {"route": "faithful", "top_k": 8},
    ],
    ids=str,
)
def test_every_control_works_at_both_ends(method, picture, values):
    limits = {"num_candidates": min(values.get("num_candidates", 1), 3), "num_steps": min(values.get("num_steps", 1), 6)}
    result = method.caption(picture, quick(method, **{"max_tokens": 3, **values, **limits}))
    assert result.caption
    assert "<" not in result.caption


def test_the_classifier_term_is_the_log_of_the_expected_probability(method):
    row = type("Row", (), {"settings": {"fluency_weight": 0.0, "classifier_weight": 1.0, "relevance_weight": 0.0}})
    goal = Goal([row], [None], method.players.tokenizer)
    goal.tokens, goal.heard, goal.target = [torch.tensor([0, 1])], [torch.tensor([0.9, 0.1])], [torch.tensor([0.5, 0.5])]
    moved = torch.tensor([[0.6, 0.2, 0.2]]).log()
    expected = -torch.log(torch.tensor(0.75 * 0.9 + 0.25 * 0.1))
    assert goal.losses(moved, moved)["loss"].item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_shipped_classifier_tells_audible_from_silent(method):
    rows = [line.split("\t") for line in SENTENCES.read_text().splitlines()]
    said = method.players.classifier("audio").probability([text for text, _ in rows]) > 0.5
    right = [bool(s) == (label == "1") for s, (_, label) in zip(said.tolist(), rows, strict=True)]
    assert sum(right) / len(right) >= 0.85

"""What may not be said again, against the rule written down word by word."""

import random
from collections import Counter

import pytest
import torch
from fakes import is_content

from captioners.repeats import RepeatRule, content_tokens

VOCAB, CONTENT = 6, {3, 4, 5}
RULE = RepeatRule(torch.tensor([i in CONTENT for i in range(VOCAB)]), torch.tensor([True, False, True]))


def is_repeat(row: int, word: int, distance: int) -> bool:
    return distance == 1 or (distance > 1 and bool(RULE.once[row]) and word in CONTENT)


@pytest.fixture(params=range(5))
def drawn(request) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Some rows with words, −1 where none stands, and how sure each is; often as sure as another."""
    rng = random.Random(request.param)
    rows = rng.choices(range(3), k=4)
    words = torch.tensor([[rng.randrange(-1, VOCAB) for _ in range(7)] for _ in rows])
    return rows, words, torch.tensor([[float(rng.randrange(3)) for _ in range(7)] for _ in rows])


def test_what_would_be_a_repeat_is_forbidden_and_nothing_else(drawn):
    rows, words, _ = drawn
    at = torch.rand(words.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    logp = torch.randn(int(at.sum()), VOCAB)
    before, allowed = logp.clone(), RULE.forbid(torch.tensor(rows), words, at, logp)
    for (r, place), old, new in zip(at.nonzero().tolist(), before, allowed, strict=True):
        said = [(int(word), abs(place - other)) for other, word in enumerate(words[r])]
        for word in range(VOCAB):
            gone = any(word == w and is_repeat(rows[r], w, distance) for w, distance in said)
            assert new[word] == (-torch.inf if gone else old[word])
    assert torch.equal(logp, before)


def test_of_words_that_repeat_each_other_the_surest_stays(drawn):
    rows, words, sure = drawn
    found = RULE.less_sure(torch.tensor(rows), words, sure)
    for r, row in enumerate(words.tolist()):
        for i, word in enumerate(row):
            rivals = [j for j, other in enumerate(row) if other == word >= 0 and is_repeat(rows[r], word, abs(i - j))]
            assert found[r, i] == any((sure[r, j], -j) > (sure[r, i], -i) for j in rivals)


def test_content_is_told_from_function(embedded):
    tokenizer = embedded.models.tokenizer
    content = content_tokens(tokenizer)
    assert content.tolist() == [is_content(tokenizer, i) for i in range(len(tokenizer))]
    for word, expected in ((" dog", True), (" red", True), (" the", False), (" on", False), (" a", False)):
        assert content[tokenizer.token_id(word)] == expected


@pytest.mark.parametrize("decoding", ["greedy", "sample", "beam"])
def test_content_words_are_said_once_when_that_is_wanted(cfg, picture, decoding):
    """At a guidance so strong that they are repeated otherwise."""
    said = {}
    for repeats in ("any", "once"):
        settings = cfg.spec.settings(guidance_scale=5, temperature=1, decoding=decoding, repeats=repeats, max_tokens=30)
        tokens = [entry.token for entry in cfg.caption(picture, settings).trace]
        said[repeats] = max(Counter(t for t in tokens if is_content(cfg.models.tokenizer, t)).values())
    assert said["once"] == 1
    assert decoding == "sample" or said["any"] > 1

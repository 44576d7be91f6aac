"""Vocabularies of the hub profile, and a language model that guides across them."""

import math

import pytest
import torch

from captioners.methods.continuations import ContinuationScorer, sorted_vocabulary
from captioners.profiles.hub.vocabularies import ClipVocabulary, as_written
from captioners.run_record import RunRecord
from captioners.text import EOS, UNFINISHED


@pytest.fixture(scope="module")
def clip_words(coca) -> ClipVocabulary:
    return coca.models.tokenizer


def continuations(coca, prompt="") -> ContinuationScorer:
    return ContinuationScorer(coca.models, [0], [prompt], 1, 10, RunRecord())


def scored(side: ContinuationScorer, ids: list[int], vocab: int) -> dict[int, float]:
    scores = torch.full((1, vocab), -math.inf)
    scores[0, ids] = 0.0
    lm = side.next(lambda: scores)["lm"][0]
    assert torch.isneginf(lm[[i for i in range(100) if i not in ids]]).all()
    return {i: lm[i].item() for i in ids}


@torch.no_grad()
@pytest.mark.parametrize("prompt", ["", "two men are playing football"])
def test_where_both_vocabularies_agree_the_lm_has_its_own_word(coca, clip_words, prompt):
    """Words that are one token in both: the LM's distribution over them, before and after words it has read."""
    lm, words = coca.models.language_model(), coca.models.lm_tokenizer
    shared = [w for w in ("a", "dog", "the", "two", "men", "playing") if len(words.raw(f" {w}")) == 1]
    assert len(shared) >= 4
    side, read = (
        continuations(coca, prompt),
        [words.bos, *([*words.encode(prompt), words.eos, words.newline] if prompt else [])],
    )
    for said in ("", "a", "dog"):
        if said:
            side.append(torch.tensor(clip_words.encode(said)))
            read += words.raw(f" {said}")
        found = scored(side, [clip_words.encode(w)[0] for w in shared], len(clip_words))
        logits = lm(torch.tensor([read]))[0][0, -1]
        expected = logits[[words.raw(f" {w}")[0] for w in shared]].log_softmax(-1)
        assert torch.allclose(torch.tensor(list(found.values())), expected, atol=1e-4)


@torch.no_grad()
def test_the_pieces_of_a_word_are_judged_together(coca, clip_words):
    """After an unfinished piece, candidates that finish the word are worth the whole word, whatever its pieces are."""
    lm, words = coca.models.language_model(), coca.models.lm_tokenizer
    first, endings = clip_words.token_id(f" st{UNFINISHED}"), [clip_words.token_id(e) for e in ("op", "ar", "ay")]
    side = continuations(coca)
    side.append(torch.tensor([first]))
    assert side.pending == [" st"]
    found = scored(side, endings, len(clip_words))
    expected = []
    for token in found:
        ids = words.raw(" st" + clip_words.piece(token, first))
        logp = lm(torch.tensor([[words.bos, *ids[:-1]]]))[0][0].log_softmax(-1)
        expected.append(sum(logp[i, t] for i, t in enumerate(ids)))
    assert torch.allclose(torch.tensor(list(found.values())), torch.stack(expected).log_softmax(0), atol=1e-4)


@torch.no_grad()
def test_an_unfinished_piece_counts_every_token_that_begins_with_it(coca, clip_words):
    lm, words = coca.models.language_model(), coca.models.lm_tokenizer
    piece, whole = clip_words.token_id(f" pla{UNFINISHED}"), clip_words.encode("dog")[0]
    side = continuations(coca)
    found = scored(side, [piece, whole], len(clip_words))
    p = lm(torch.tensor([[words.bos]]))[0][0, -1].softmax(-1)
    longer = sum(p[i] for i in range(len(words)) if words.piece(i).startswith(" pla") and words.piece(i) != " pla")
    ids = words.raw(" pla")
    if len(ids) > 1:
        logp = lm(torch.tensor([[words.bos, *ids[:-1]]]))[0][0].log_softmax(-1)
        last = words.piece(ids[-1])
        rest = sum(
            logp[-1, i].exp() for i in range(len(words)) if words.piece(i).startswith(last) and words.piece(i) != last
        )
        longer = longer + sum(logp[i, t] for i, t in enumerate(ids[:-1])).exp() * rest
    expected = torch.stack([torch.as_tensor(longer), p[words.raw(" dog")].prod()]).log().log_softmax(0)
    assert found[piece] - found[whole] == pytest.approx((expected[0] - expected[1]).item(), abs=1e-3)


def test_a_vocabulary_is_sorted_once(coca):
    tokenizer = coca.models.lm_tokenizer
    assert sorted_vocabulary(tokenizer) is sorted_vocabulary(tokenizer)


def test_guided_by_gpt2_rows_do_not_disturb_each_other(coca, draw):
    media = [draw(0), draw(1), draw(0), draw(1)]
    values = [
        {"lm_weight": 0.5, "lm_prompt": "a dog runs"},
        {},
        {"lm_weight": 1.0},
        {"lm_weight": 0.5, "decoding": "beam", "num_beams": 3},
    ]
    settings = [coca.spec.settings(max_tokens=5, **v) for v in values]
    batch = coca.caption_batch(media, settings)
    single = [coca.caption(m, s) for m, s in zip(media, settings, strict=True)]
    assert [r.caption for r in batch] == [r.caption for r in single]
    assert batch[1].trace[0].lm is None
    assert batch[0].trace[0].lm == pytest.approx(single[0].trace[0].lm, abs=1e-3)
    again = coca.caption(
        media[3], settings[3].replace(decoding="greedy", forced={t.position: t.token for t in single[3].trace})
    )
    # beams take their words along
    assert [t.lm for t in batch[3].trace] == pytest.approx([t.lm for t in again.trace], abs=1e-3)


@pytest.mark.parametrize("role", ["clip", "gpt2"])
def test_pieces_join_to_the_caption_and_lead_back_to_their_tokens(role, coca):
    words = coca.models.tokenizer if role == "clip" else coca.models.lm_tokenizer
    text = "a skateboarder plays with two dogs"
    ids = words.encode(text)
    pieces = [words.piece(i, before) for before, i in zip([None, *ids], ids, strict=False)]
    assert "".join(pieces).replace(UNFINISHED, "").strip() == text == words.decode([*ids, words.eos, *ids])
    assert [words.token_id(p) for p in pieces] == ids
    assert words.piece(words.eos) == EOS


@pytest.mark.parametrize(
    ("taken_apart", "written"),
    [
        ("a man in a t - shirt", "a man in a t-shirt"),
        ("a clock that says 3 : 3 0 pm", "a clock that says 3:30 pm"),
        ("a dog 's toy and 2 cats , 1 . 5 meters", "a dog's toy and 2 cats, 1.5 meters"),
        ("it is 5 o ' clock", "it is 5 o'clock"),
    ],
)
def test_what_a_vocabulary_took_apart_is_written_together(coca, taken_apart, written):
    words = coca.models.tokenizer
    assert as_written(taken_apart) == written
    assert words.decode(words.encode(written)) == written

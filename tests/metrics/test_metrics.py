"""Metrics against numbers worked out by hand, by brute force, or by pycocoevalcap called directly."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from fakes import HashMatcher, unit
from pycocoevalcap.cider.cider import Cider

from captioners.decoding import diversity
from captioners.metrics.base import CaptionSet, measure
from captioners.metrics.bootstrap import Resampler, jackknife
from captioners.metrics.diversity import self_bleu
from captioners.metrics.matching import ranks
from captioners.metrics.word_classes import gains_by_class, word_gains
from captioners.types import TokenTrace
from captioners.words import count_words, tokenize

SETS = [
    ["a dog runs in the snow", "a black dog is running"],
    ["two children play football", "kids with a ball on the grass"],
    ["a man rides a red bicycle", "the cyclist is on a street"],
    ["a boat on the lake at night", "the lake is dark"],
]
CAPTIONS = ["a dog runs in the grass", "two kids play", "a man on a bicycle", "a dog"]
IDS = ["dog", "kids", "man", "boat"]


class FixedJudge:
    name = "fixed-lm"

    def log_likelihood(self, texts):
        return [-2.0 * (len(t.split()) + 1) for t in texts]


def rows(**changes) -> CaptionSet:
    given = {"ids": IDS, "captions": CAPTIONS, "references": SETS}
    return CaptionSet(**{**given, **changes})


# --------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A man's dog isn't here .", ["a", "man", "'s", "dog", "is", "n't", "here"]),
        ('"Hi!" (two) T-shirts, 3.5 m -- 2,000 people', ["hi", "two", "t-shirts", "3.5", "m", "2,000", "people"]),
        ("The dogs’ ball; they’re running…", ["the", "dogs", "ball", "they", "'re", "running"]),
        (" . ", []),
    ],
)
def test_tokens_are_those_of_the_stanford_tokenizer_without_punctuation(text, tokens):
    assert tokenize(text) == tokens


def test_words_are_counted_as_a_reader_counts_them():
    assert count_words("A man's T-shirt , and more .") == 5


# ------------------------------------------------------------------------------------------------------- n-grams


def test_bleu_is_the_hand_computed_clipped_precision_with_brevity_penalty():
    # 4 words, 3 right ("the" is clipped to one of two); bigrams: 1 of 3 right ("cat sat"); reference of 5 words
    result = measure(CaptionSet(["x"], ["the the cat sat"], [["the old cat sat here"]]))
    brevity = math.exp(1 - 5 / 4)
    assert result["bleu-1"].mean == pytest.approx(brevity * 3 / 4)
    assert result["bleu-2"].mean == pytest.approx(brevity * math.sqrt(3 / 4 * 1 / 3))
    assert result["bleu-4"].mean < 1e-3


def test_bleu_of_the_set_pools_counts_instead_of_averaging_sentences():
    result = measure(CaptionSet(["x", "y"], ["a b c d", "q"], [["a b c d"], ["z"]]))["bleu-1"]
    assert result.items == pytest.approx([1.0, 0.0])
    assert result.mean == pytest.approx(4 / 5)


def test_rouge_l_is_the_hand_computed_f_measure():
    precision, recall = 3 / 3, 3 / 4  # "dog in snow" inside "dog runs in snow"
    expected = (1 + 1.44) * precision * recall / (recall + 1.44 * precision)
    assert measure(CaptionSet(["x"], ["dog in snow"], [["dog runs in snow"]]))["rouge-l"].mean == pytest.approx(
        expected
    )


def test_an_empty_caption_scores_zero_everywhere():
    result = measure(rows(captions=["", *CAPTIONS[1:]]))
    assert [result[name].items[0] for name in ("bleu-1", "rouge-l", "cider", "words")] == pytest.approx([0, 0, 0, 0])


def test_cider_is_that_of_pycocoevalcap_on_the_same_tokens():
    expected, items = Cider().compute_score(dict(enumerate(SETS)), {i: [c] for i, c in enumerate(CAPTIONS)})
    ours = measure(rows())["cider"]
    assert ours.mean == pytest.approx(expected)
    assert ours.items == pytest.approx(items.tolist())


def test_cider_of_a_copy_is_far_above_that_of_another_pictures_caption():
    copies = [refs[0] for refs in SETS]
    copied, shifted = (measure(rows(captions=c))["cider"] for c in (copies, copies[1:] + copies[:1]))
    assert min(copied.items) > 3 > 0.5 > max(shifted.items)


def test_cider_of_a_single_reference_copied_is_ten():
    lonely = [[refs[0]] for refs in SETS]
    assert measure(rows(captions=[r[0] for r in lonely], references=lonely))["cider"].mean == pytest.approx(10.0)


def test_cider_counts_a_picture_with_several_captions_as_one_document():
    once = measure(rows())["cider"].items
    thrice = measure(CaptionSet(IDS * 3, CAPTIONS * 3, SETS * 3))["cider"].items
    assert thrice == pytest.approx(once * 3)


def test_cider_is_left_out_for_one_picture():
    assert "cider" not in measure(CaptionSet(["x", "x"], ["a dog", "a cat"], [["a dog"], ["a dog"]]))


def test_metrics_with_unmet_needs_are_left_out():
    names = set(measure(rows(references=None)))
    assert names == {"dist-1", "dist-2", "dist-3", "vocabulary", "distinct", "words", "doubled"}


# ----------------------------------------------------------------------------------------------------- diversity


def test_diversity_counts_distinct_ngrams_over_the_whole_set():
    result = measure(CaptionSet(["x", "y", "z"], ["a dog runs", "a dog sits", "A dog runs."]))
    assert result["dist-1"].mean == pytest.approx(4 / 9)
    assert result["dist-2"].mean == pytest.approx(3 / 6)
    assert result["dist-3"].mean == pytest.approx(2 / 3)
    assert result["vocabulary"].mean == 4
    assert result["distinct"].mean == pytest.approx(2 / 3)
    assert result["words"].mean == 3


def test_a_content_word_that_stands_twice_is_a_doubled_one():
    captions = ["a sink and a Sink.", "the dog and the man", "a man's hat beside a man", "people"]
    result = measure(CaptionSet([*"wxyz"], captions))["doubled"]
    assert list(result.items) == [1, 0, 1, 0] and result.mean == 0.5


def test_self_bleu_is_one_for_equal_candidates_and_near_zero_for_unrelated_ones():
    assert self_bleu(["a dog runs in snow"] * 3) == pytest.approx(1.0)
    assert self_bleu(["a dog runs in snow", "two boats lie at night"]) < 1e-3


def test_self_bleu_is_measured_where_media_have_several_captions():
    same, other = "a dog runs in snow", "two boats lie at night"
    result = measure(CaptionSet(["x", "x", "y", "y", "z"], [same, same, same, other, same]))["self-bleu"]
    assert result.mean == pytest.approx(0.5, abs=1e-3)


# ------------------------------------------------------------------------------------------------------ matching


def test_clipscore_and_ref_clipscore_follow_the_papers_formula():
    media = torch.stack([unit(i) for i in IDS])
    result = measure(rows(matcher=HashMatcher(), media=media.numpy()))
    for i, caption in enumerate(CAPTIONS):
        text = unit("A photo depicts " + caption)
        score = 2.5 * max(float(media[i] @ text), 0.0)
        best = max(max(float(unit("A photo depicts " + r) @ text) for r in SETS[i]), 0.0)
        assert result["clipscore"].items[i] == pytest.approx(score, abs=1e-6)
        assert result["ref_clipscore"].items[i] == pytest.approx(
            2 * score * best / (score + best) if score + best else 0.0, abs=1e-6
        )
    assert result["clipscore"].mean == pytest.approx(np.mean(result["clipscore"].items))
    assert {result[n].encoder for n in ("clipscore", "ref_clipscore", "recall@1", "recall@5", "recall@10")} == {
        "hash-8"
    }
    assert result["cider"].encoder == ""


def test_recall_agrees_with_sorting_and_counts_repeated_media_once():
    ids = [f"m{i % 12}" for i in range(30)]
    media = np.stack([unit(i).numpy() for i in ids])
    captions = np.stack([unit(f"{i} {j % 7}").numpy() for j, i in enumerate(ids)])
    gallery = sorted(set(ids))
    for row, rank in enumerate(ranks(ids, media, captions)):
        order = sorted(gallery, key=lambda name: -float(captions[row] @ unit(name).numpy()))
        assert order.index(ids[row]) == rank


def test_recall_gives_no_credit_for_a_matcher_that_says_the_same_of_everything():
    assert ranks(["x", "y"], np.ones((2, 4), np.float32), np.ones((2, 4), np.float32)).tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------------- fluency


def test_perplexity_is_per_word_with_the_end_of_the_sentence_as_a_word():
    result = measure(rows(fluency=FixedJudge()))["perplexity"]
    assert result.items == pytest.approx([math.exp(2)] * 4)
    assert result.encoder == "fixed-lm"


def test_mean_perplexity_is_geometric():
    class Judge(FixedJudge):
        def log_likelihood(self, texts):
            return [-2.0, -4.0, -6.0, -8.0]

    result = measure(rows(captions=["a", "b", "c", "d"], fluency=Judge()))["perplexity"]
    assert result.mean == pytest.approx(math.exp((1 + 2 + 3 + 4) / 4))
    assert result.low < result.mean < result.high


# ----------------------------------------------------------------------------------------------------- intervals


def test_intervals_hold_the_mean_and_are_the_same_every_time():
    given = rows(fluency=FixedJudge(), matcher=HashMatcher(), media=np.stack([unit(i).numpy() for i in IDS]))
    first, second = measure(given), measure(rows(**{n: getattr(given, n) for n in ("fluency", "matcher", "media")}))
    assert first == second
    for result in first.values():
        assert result.low <= result.mean <= result.high, result.name


def test_the_interval_of_a_mean_is_that_of_normal_theory_on_many_rows():
    values = np.random.default_rng(0).normal(size=900)
    low, high = Resampler([str(i) for i in range(900)]).mean(values)
    half = 1.96 * values.std() / 30
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)


def test_captions_of_one_picture_do_not_narrow_the_interval():
    values = np.random.default_rng(0).normal(size=100)
    once = Resampler([str(i) for i in range(100)]).mean(values)
    tenfold = Resampler([str(i) for i in range(100)] * 10).mean(np.tile(values, 10))
    assert tenfold == pytest.approx(once)


def test_bleu_of_a_resample_is_that_of_pycocoevalcap():
    from captioners.metrics.ngram import _bleu, _bleu_counts, bleu_scorer

    scorer = bleu_scorer(CAPTIONS, SETS)
    counts = np.array([_bleu_counts(row) for row in scorer.ctest], dtype=float)
    expected, _ = scorer.compute_score(option="closest")
    assert [_bleu(counts.sum(0), n) for n in (1, 2, 3, 4)] == pytest.approx(expected)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(1).normal(size=200)
    without = (values.sum() - values) / 199
    low, high = jackknife(values.mean(), without)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std(ddof=1) / math.sqrt(200))


def test_text_metrics_do_not_import_torch():
    code = (
        "import sys; from captioners.metrics.base import CaptionSet, measure; measure(CaptionSet(['x', 'y'], ['a', "
        "'b'], [['a'], ['b']]))"
    )
    subprocess.run([sys.executable, "-c", code + "; assert 'torch' not in sys.modules"], check=True)


# ------------------------------------------------------------------------------------ candidates and classes of words


def test_candidates_of_one_input_are_as_varied_as_their_pairs_of_words():
    rows = CaptionSet(
        ["a", "b"],
        ["x", "y"],
        candidates=[["a red dog runs"] * 3, ["a red dog runs", "two boats at night", "a red dog runs"]],
    )
    results = measure(rows)
    assert results["candidates-distinct"].items == pytest.approx([1 / 3, 2 / 3])
    assert results["candidates-dist-2"].items == pytest.approx([3 / 9, 6 / 9])
    assert results["self-bleu"].items[0] == pytest.approx(1, abs=1e-6)
    assert results["self-bleu"].items[1] < 0.8


def test_a_result_counts_the_variety_of_its_candidates_as_the_metrics_do():
    captions = ["A man's dog, running.", "a man's dog running", "a well-kept lawn"]
    measured, told = measure(CaptionSet(["one"], captions[:1], candidates=[captions])), diversity(captions)
    assert told["distinct"] == measured["candidates-distinct"].mean == pytest.approx(2 / 3)
    assert told["dist-2"] == measured["candidates-dist-2"].mean == pytest.approx(6 / 10)
    assert told["dist-1"] == pytest.approx(7 / 13)


def trace(*tokens: tuple[str, float, float]) -> list[TokenTrace]:
    return [TokenTrace(i, token, cond, uncond, cond, {}, 0.0, 0.0) for i, (token, cond, uncond) in enumerate(tokens)]


def test_the_gain_of_a_word_is_that_of_its_pieces_and_the_end_is_no_word():
    said = trace(
        (" A", -1, -1.5),
        (" snow", -1, -3),
        ("board", -0.5, -1),
        (" of", -2, -1),
        (" dogs", -1, -2),
        (".", 0, -4),
        ("<eos>", 0, -9),
    )
    assert word_gains(said) == [("a", 0.5), ("snowboard", 2.5), ("of", -1.0), ("dogs", 1.0)]
    assert gains_by_class(said) == {"content": (3.5, 2), "function": (-0.5, 2)}


def test_gains_are_means_over_all_words_of_a_class():
    rows = CaptionSet(
        ["a", "b"],
        ["x", "y"],
        gains=[{"content": (6.0, 2), "function": (1.0, 1)}, {"content": (1.0, 5), "function": (0.0, 0)}],
    )
    results = measure(rows)
    assert results["gain-content"].mean == pytest.approx(1.0)
    assert results["gain-function"].mean == pytest.approx(1.0)
    assert results["gain-content"].low <= 1.0 <= results["gain-content"].high

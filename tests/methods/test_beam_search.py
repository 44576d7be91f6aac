"""Beam search: transformers' finds the same captions on the same logits, guided ones included."""

import math
from types import SimpleNamespace

import pytest
import torch
from fakes import small_models
from same import close, content
from transformers import (
    GenerationConfig,
    GenerationMixin,
    GPT2Config,
    GPT2LMHeadModel,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput

from captioners import guidance
from captioners.decoding import generator
from captioners.methods.beam_search import BeamSearch
from captioners.methods.cfg import ClassifierFree
from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.types import to_json

END_BIAS = 6.0  # a random model would hardly ever end: its vocabulary has thousands of tokens


def beams_of_transformers(model, start: int, end: int, beams: int, longest: int) -> tuple[list[list[int]], list[float]]:
    """All finished captions, best first, and their scores."""
    config = GenerationConfig(
        num_beams=beams, num_return_sequences=beams, max_new_tokens=longest, do_sample=False, eos_token_id=end, pad_token_id=0,
        bos_token_id=start, use_cache=False, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    with torch.no_grad():
        found = model.generate(torch.tensor([[start]]), generation_config=config)
    rows = [row[: row.index(end) + 1] if end in row else row for row in found.sequences[:, 1:].tolist()]
    return rows, found.sequences_scores.tolist()


# --------------------------------------------------------------------------------------------------- the search itself


@pytest.mark.parametrize("beams", [2, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_what_transformers_finds(seed, beams):
    torch.manual_seed(seed)
    size = {
        "vocab_size": 17,
        "n_positions": 32,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    model = GPT2LMHeadModel(GPT2Config(**size, initializer_range=0.6)).eval()
    start, end, longest = 1, 2, 9
    search = BeamSearch([[] for _ in range(beams)], lambda said, token: [*said, token], end, longest)
    while not search.done:
        with torch.no_grad():
            logits = model(torch.tensor([[start, *said] for said in search.beams])).logits[:, -1]
        search.step(logits.log_softmax(-1))
    captions, scores = beams_of_transformers(model, start, end, beams, longest)
    assert [said for _, said in search.finished] == captions
    assert [score for score, _ in search.finished] == pytest.approx(scores, abs=1e-5)


# ------------------------------------------------------------------------------------------------------- in method 1


class EagerDecoder(CaptionDecoder):
    """A small decoder of random weights that comes to an end now and then."""

    def __init__(self, vocab: int, end: int) -> None:
        torch.manual_seed(0)
        sizes = {
            "dim": 32,
            "text_layers": 1,
            "cross_layers": 1,
            "heads": 2,
            "media_dim": 16,
            "image_cells": 4,
            "audio_cells": 3,
        }
        super().__init__(CaptionerConfig(vocab=vocab, **sizes))
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1 and not name.startswith("cells"):
                torch.nn.init.normal_(parameter, std=0.3)
        self.end = end
        self.eval().requires_grad_(False)

    def forward(self, *args):
        logits, cache = super().forward(*args)
        logits[..., self.end] += END_BIAS
        return logits, cache


@pytest.fixture(scope="module")
def method(embedded) -> ClassifierFree:
    tokenizer, lm = embedded.models.tokenizer, embedded.models.language_model()
    net, cells = EagerDecoder(len(tokenizer), tokenizer.eos), {"image": 4, "audio": 3}

    def encode(media):
        return [SimpleNamespace(grid=torch.randn(cells[m.kind], 16, generator=generator(0, m, 7))) for m in media]

    models = {"encode": encode, "caption_decoder": lambda: net, "language_model": lambda: lm, "lm_tokenizer": tokenizer}
    return ClassifierFree(small_models(tokenizer, **models))


class GuidedModel(PreTrainedModel, GenerationMixin):
    """Method 1 as transformers sees a model: guided log-probabilities, the whole beginning read again for every
    token.
    """

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, method, media, settings) -> None:
        super().__init__(PretrainedConfig())
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.models, self.settings = method.models, settings
        self.net, grid = method.models.caption_decoder(), method.models.encode([media])[0].grid
        self.seen = self.net.condition({media.kind: grid[None]}, torch.tensor([0]))

    def prepare_inputs_for_generation(self, input_ids, **more):
        return {"input_ids": input_ids}

    def forward(self, input_ids, return_dict=True):
        rows, tokenizer = torch.zeros(len(input_ids), dtype=torch.long), self.models.tokenizer
        cond, uncond = (
            self.net(input_ids, c)[0][:, -1].log_softmax(-1) for c in (self.seen[rows], self.seen[rows].removed())
        )
        scores, weight = guidance.cfg(cond, uncond, self.settings["guidance_scale"]), self.settings["lm_weight"]
        if weight:
            lm = self.models.language_model()(input_ids)[0][:, -1].log_softmax(-1)
            scores = scores + weight * (lm - uncond)
        first = input_ids.shape[1] == 1
        scores[:, [t for t in tokenizer.special_ids if t != tokenizer.eos or first]] = -math.inf
        return CausalLMOutput(logits=scores.log_softmax(-1)[:, None])


@pytest.fixture(params=["picture", "sound"])
def media(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    "values", [{"guidance_scale": 1}, {"guidance_scale": 2}, {"guidance_scale": 2, "lm_weight": 0.4}], ids=str
)
@pytest.mark.parametrize("beams", [2, 5])
def test_guided_captions_are_those_of_transformers(method, media, values, beams):
    settings = method.spec.settings(decoding="beam", num_beams=beams, num_candidates=beams, max_tokens=7, **values)
    result = method.caption(media, settings)
    tokenizer = method.models.tokenizer
    expected, scores = beams_of_transformers(
        GuidedModel(method, media, settings), method.models.start_token(media.kind), tokenizer.eos, beams, 7
    )
    found = sorted((c.logprob, c.caption) for c in result.candidates)
    sums = [(score * len(ids), tokenizer.decode(ids)) for score, ids in zip(scores, expected, strict=True)]
    close([list(pair) for pair in found], [list(pair) for pair in sorted(sums)], within=1e-3)
    assert {len(ids) for ids in expected} != {7}  # some have ended before they had to


def test_one_caption_is_the_best_of_the_search(method, media):
    settings = method.spec.settings(decoding="beam", num_beams=4, max_tokens=7)
    result = method.caption(media, settings)
    tokenizer = method.models.tokenizer
    (best, *_), _ = beams_of_transformers(
        GuidedModel(method, media, settings), method.models.start_token(media.kind), tokenizer.eos, 4, 7
    )
    assert result.caption == tokenizer.decode(best)
    assert len(result.candidates) == 1


def test_one_beam_is_greedy_and_a_search_never_says_anything_less_likely(method, draw):
    for seed in range(4):
        media = draw(seed)
        greedy, one, many = (
            method.caption(media, method.spec.settings(max_tokens=6, **values))
            for values in (
                {"decoding": "greedy"},
                {"decoding": "beam", "num_beams": 1},
                {"decoding": "beam", "num_beams": 16},
            )
        )
        close(content(one)["trace"], content(greedy)["trace"])
        assert _mean(many) >= _mean(greedy) - 1e-5


def _mean(result) -> float:
    return result.candidates[0].logprob / len(result.trace)


def test_a_caption_s_trace_is_its_own_from_the_first_token_on(cfg, picture):
    """Beams change places: each column of the trace is what a single pass over the finished caption gives."""
    for scale in (1, 2):
        settings = cfg.spec.settings(
            decoding="beam", num_beams=4, num_candidates=3, guidance_scale=scale, lm_weight=0.3, max_tokens=9
        )
        result = cfg.caption(picture, settings)
        same = {entry.position: entry.token for entry in result.trace if entry.token.strip()}
        again = cfg.caption(picture, cfg.spec.settings(guidance_scale=scale, lm_weight=0.3, max_tokens=9, forced=same))
        assert again.caption == result.caption
        close(content(result)["trace"], content(again)["trace"], within=1e-3)
        assert result.candidates[0].logprob == pytest.approx(sum(entry.guided for entry in result.trace), abs=1e-3)


ROWS = [
    {"decoding": "beam", "num_beams": 3, "guidance_scale": 2},
    {"guidance_scale": 1},
    {"decoding": "beam", "num_beams": 5, "guidance_scale": 1, "num_candidates": 2, "max_tokens": 4},
    {"decoding": "sample", "num_candidates": 3, "guidance_scale": 2},
    {"decoding": "beam", "num_beams": 2, "lm_weight": 0.5, "lm_prompt": "a dog runs | two men", "no_repeat": 1},
]


def test_searches_beside_other_rows_find_what_they_find_alone(method, draw, play):
    media = [draw(1), play(2), play(3), draw(4), draw(5)]
    settings = [method.spec.settings(**({"max_tokens": 8} | values)) for values in ROWS]
    for item, values, result in zip(media, settings, method.caption_batch(media, settings), strict=True):
        close(content(method.caption(item, values)), content(result))


def test_a_stream_shows_the_best_beam_as_a_draft_and_ends_with_the_caption(method, media):
    settings = method.spec.settings(decoding="beam", num_beams=3, num_candidates=2, max_tokens=7)
    *steps, last = method.stream(media, settings)
    assert content(last.result) == content(method.caption(media, settings))
    assert {t.state for step in steps for t in step.tokens} == {"draft"}
    assert {t.state for t in last.tokens} == {"final"}
    assert all(len(step.trace) == step.position > 0 and len(step.others) == 1 for step in steps)


def test_every_beam_begins_with_the_forced_words_and_a_forced_end_ends_them_all(method, media):
    settings = method.spec.settings(decoding="beam", num_beams=4, num_candidates=4, max_tokens=6)
    begun = method.caption(media, settings.replace(forced={0: " two", 1: " dogs"}))
    assert all(c.caption.startswith("two dogs") for c in begun.candidates)
    assert len({c.caption for c in begun.candidates}) == 4
    ended = method.caption(media, settings.replace(forced={0: " a", 1: " dog", 2: "<eos>"}))
    assert {c.caption for c in ended.candidates} == {"a dog"}
    assert [entry.token for entry in ended.trace] == [" a", " dog", "<eos>"]


def test_a_forced_word_that_could_not_be_said_does_not_stop_the_search(method, picture):
    again = {0: " a", 1: " dog", 2: " a", 3: " dog"}
    result = method.caption(picture, method.spec.settings(decoding="beam", no_repeat=2, max_tokens=6, forced=again))
    assert result.caption.startswith("a dog a dog")
    assert result.trace[3].guided == -math.inf


def test_more_candidates_than_beams_widen_the_search(method, picture):
    result = method.caption(picture, method.spec.settings(decoding="beam", num_beams=2, num_candidates=6, max_tokens=6))
    assert len(result.candidates) == len({c.caption for c in result.candidates}) == 6
    assert to_json(result)


def test_decoding_says_outright_what_the_temperature_said_before(method, picture):
    def said(**values):
        return [
            c.caption
            for c in method.caption(picture, method.spec.settings(max_tokens=6, num_candidates=2, **values)).candidates
        ]

    assert said() == said(decoding="greedy") == said(decoding="greedy", temperature=2)
    assert said(temperature=1.5) == said(decoding="sample", temperature=1.5)
    assert said(decoding="sample") == said(temperature=0.7)
    assert said(decoding="beam") == said(decoding="beam", temperature=2, seed=5)

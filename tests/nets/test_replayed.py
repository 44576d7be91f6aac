"""Steps on tensors that keep their shapes and places say what transformers' and open_clip's own loops say, recorded by
`torch.compile` instead of a GPU.
"""

from functools import partial
from threading import Thread

import pytest
import torch
from tiny_captioners import SIDE, tiny_blip, tiny_git, tiny_vit_gpt2
from tiny_hub import tiny_coca

from captioners.nets import few_rows, replayed
from captioners.nets.coca import CocaDecoder
from captioners.nets.from_transformers import blip_decoder, git_decoder, vit_gpt2_decoder
from captioners.nets.replayed import RecordedCache, ReplayedDecoder

COUNT = 10
PICTURES = torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
HOW = {"max_new_tokens": COUNT, "min_new_tokens": COUNT, "do_sample": False}


def coca():
    model = tiny_coca()
    ids = torch.full((3, 1), 49406)
    for _ in range(COUNT):
        logits = model(PICTURES, ids, output_labels=False)["logits"][:, -1]
        logits[:, 49407] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return CocaDecoder(model), model.visual(PICTURES)[1], 49407, ids


def blip():
    model = tiny_blip()
    grid = model.vision_model(PICTURES).last_hidden_state
    return blip_decoder(model), grid, model.config.text_config.sep_token_id, model.generate(PICTURES, **HOW)


def git():
    """Whose picture stands before the text, in the same cache."""
    model = tiny_git()
    grid = model.git.visual_projection(model.git.image_encoder(PICTURES).last_hidden_state)
    ids = model.generate(pixel_values=PICTURES, input_ids=torch.full((3, 1), 2), **HOW)
    return git_decoder(model), grid, 3, ids


def vit_gpt2():
    model = tiny_vit_gpt2()
    return vit_gpt2_decoder(model), model.encoder(PICTURES).last_hidden_state, 319, model.generate(PICTURES, **HOW)


def again(work):
    """A recording that does the work again."""
    return work


def compiled(backend: str):
    """No step of Python is left between the operations, as a graph needs it."""
    return partial(torch.compile, backend=backend, fullgraph=True)


def greedy(decoder, condition, start: int, end: int, rows: int = 3, count: int = COUNT) -> list[list[int]]:
    ids, past, found = torch.full((rows, 1), start), None, []
    for _ in range(count):
        logits, past = decoder(ids, condition, past)
        ids = logits[:, -1:].index_fill(-1, torch.tensor([end]), -torch.inf).argmax(-1)
        found.append(ids)
    return torch.cat(found, 1).tolist()


def condition_of(decoder, grid):
    return decoder.condition({"image": grid}, torch.arange(len(grid)))


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Where no products are raced."""
    monkeypatch.setattr(few_rows, "LARGE", 2**40)


@pytest.fixture(scope="module")
def family():
    with torch.no_grad():
        decoder, grid, end, theirs = blip()
        return decoder.eval(), condition_of(decoder, grid), end, theirs


@torch.no_grad()
@pytest.mark.parametrize("make", [coca, blip, git, vit_gpt2])
@pytest.mark.parametrize("record", [again, compiled("eager"), compiled("aot_eager")], ids=["again", "eager", "aot"])
def test_replayed_steps_choose_the_tokens_of_the_models_own_library(make, record):
    decoder, grid, end, theirs = make()
    decoder = ReplayedDecoder(decoder.eval().requires_grad_(False), record)
    assert greedy(decoder, condition_of(decoder, grid), int(theirs[0, 0]), end) == theirs[:, 1:].tolist()
    assert len(decoder.recordings) == 1


@torch.no_grad()
def test_logits_and_caches_are_those_of_tensors_that_grow(family, monkeypatch):
    """With rows that leave and change places, and past the room of the first recording."""
    monkeypatch.setattr(replayed, "ROOM", 4)
    decoder, condition, _, theirs = family
    static = ReplayedDecoder(decoder, again)
    both = [decoder, static]
    pasts, kept = [None, None], torch.arange(3)
    for position in range(COUNT):
        if position == 6:
            kept, condition = kept[[2, 0]], condition[torch.tensor([2, 0])]
            pasts = [[(k[[2, 0]], v[[2, 0]]) for k, v in past] for past in pasts]
        ids = theirs[kept, position : position + 1]
        (expected, pasts[0]), (logits, pasts[1]) = (
            d(ids, condition, past) for d, past in zip(both, pasts, strict=True)
        )
        assert torch.allclose(logits, expected, atol=1e-4)
        for mine, plain in zip(pasts[1], pasts[0], strict=True):
            assert torch.allclose(mine[0], plain[0], atol=1e-4)
            assert torch.allclose(mine[1], plain[1], atol=1e-4)
    assert isinstance(pasts[1], RecordedCache)


@torch.no_grad()
def test_two_texts_that_go_on_from_one_cache_do_not_disturb_each_other(family):
    decoder, condition, _, theirs = family
    static = ReplayedDecoder(decoder, again)
    _, past = static(theirs[:, :1], condition)
    _, past = static(theirs[:, 1:2], condition, past)
    first, _ = static(theirs[:, 2:3], condition, past)
    second, _ = static(theirs[:, 3:4], condition, past)
    again_first, _ = static(theirs[:, 2:3], condition, past)
    assert torch.equal(first, again_first)
    assert not torch.allclose(first, second, atol=1e-3)


@torch.no_grad()
def test_recordings_are_used_again_and_not_by_two_threads_at_once(family):
    decoder, condition, end, theirs = family
    static, found = ReplayedDecoder(decoder, again), {}
    start, expected = int(theirs[0, 0]), theirs[:, 1:].tolist()

    def work(number: int) -> None:
        order = torch.tensor([number, number, number])
        found[number] = greedy(static, condition[order], start, end)

    for _ in range(2):
        threads = [Thread(target=torch.no_grad()(work), args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {number: [expected[number]] * 3 for number in range(3)}
    assert 1 <= len(static.recordings) <= 3


@torch.no_grad()
def test_only_so_many_recordings_are_kept(family, monkeypatch):
    monkeypatch.setattr(replayed, "MOST", 2)
    decoder, condition, end, theirs = family
    static = ReplayedDecoder(decoder, again)
    for rows in (1, 2, 3, 4, 5):
        order = torch.arange(rows) % 3
        assert greedy(static, condition[order], int(theirs[0, 0]), end, rows) == theirs[order, 1:].tolist()
    assert [len(recording.ids) for recording in static.recordings] == [4, 5]


def test_a_gpu_that_records_nothing_does_the_work_itself(monkeypatch):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    with pytest.warns(UserWarning, match="without CUDA graphs: operation not permitted"):
        assert replayed.cuda_graph(again) is again

"""The text models' forward passes: a cache, padding and a removed condition change nothing that they should not."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.language_model import (
    CausalLM,
    CausalLMConfig,
    RecurrentLM,
    RecurrentLMConfig,
    sequence_log_likelihood,
)
from captioners.nets.matcher import MatcherConfig, TextTower
from captioners.nets.transformer import Block, Places

VOCAB, DIM = 50, 32
CLOSE = {"rtol": 0, "atol": 1e-4}


def randomised(net: nn.Module) -> nn.Module:
    """Every weight matters: none is at the zero or one that it starts from."""
    torch.manual_seed(0)
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.3)
    return net.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    return randomised(CausalLM(CausalLMConfig(vocab=VOCAB, dim=DIM, layers=2, max_tokens=16)))


@pytest.fixture(scope="module")
def decoder() -> CaptionDecoder:
    return randomised(
        CaptionDecoder(
            CaptionerConfig(vocab=VOCAB, dim=DIM, text_layers=1, cross_layers=2, max_tokens=16, media_dim=24)
        )
    )


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(VOCAB, (3, 9), generator=torch.Generator().manual_seed(1))


def grids(seed: int, images: int = 0, sounds: int = 0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    found = {"image": torch.randn(images, 49, 24, generator=rng), "audio": torch.randn(sounds, 20, 24, generator=rng)}
    return {kind: grid for kind, grid in found.items() if len(grid)}


def condition(decoder, grids, order=None):
    return decoder.condition(
        grids, torch.arange(sum(map(len, grids.values()))) if order is None else torch.tensor(order)
    )


def in_chunks(step, ids, sizes) -> torch.Tensor:
    """Logits of a text that is fed in chunks, behind a growing cache."""
    out, past, start = [], None, 0
    for size in sizes:
        logits, past = step(ids[:, start : start + size], past)
        out.append(logits)
        start += size
    return torch.cat(out, 1)


# --------------------------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize("sizes", [[1] * 9, [4, 1, 1, 3]], ids=["token by token", "in chunks"])
def test_cached_equals_uncached(lm, decoder, ids, sizes):
    torch.testing.assert_close(in_chunks(lm, ids, sizes), lm(ids)[0], **CLOSE)
    seen = condition(decoder, grids(0, images=3))
    torch.testing.assert_close(
        in_chunks(lambda x, past: decoder(x, seen, past), ids, sizes), decoder(ids, seen)[0], **CLOSE
    )


def test_no_token_sees_what_comes_after_it(lm, decoder, ids):
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCAB
    seen = condition(decoder, grids(0, images=3))
    for net in (lambda x: lm(x)[0], lambda x: decoder(x, seen)[0]):
        before, after = net(ids), net(changed)
        torch.testing.assert_close(before[:, :5], after[:, :5], **CLOSE)
        assert (before[:, 5:] - after[:, 5:]).abs().max() > 0.1


def test_rows_behind_padding_on_the_left_equal_rows_without(lm, ids):
    prompts = [ids[0, :6], ids[1, :2], ids[2, :4]]
    padded = torch.stack([torch.cat([torch.full((6 - len(p),), 7), p]) for p in prompts])
    mask = torch.stack([torch.arange(6) >= 6 - len(p) for p in prompts])
    logits, past = lm(padded, mask=mask)
    after, _ = lm(ids[:, 6:7], past, torch.cat([mask, torch.ones(3, 1, dtype=torch.bool)], 1))
    for row, prompt in enumerate(prompts):
        alone, _ = lm(torch.cat([prompt, ids[row, 6:7]])[None])
        torch.testing.assert_close(logits[row, 6 - len(prompt) :], alone[0, :-1], **CLOSE)
        torch.testing.assert_close(after[row, 0], alone[0, -1], **CLOSE)


def test_masking_decides_what_padding_does(lm, ids):
    """The test above would pass without a mask if padding had no influence at all."""
    padded = torch.cat([torch.full((3, 2), 7), ids[:, :3]], 1)
    assert (lm(padded)[0][:, 2:] - lm(ids[:, :3])[0]).abs().max() > 0.1


# ----------------------------------------------------------------------------------------------------- condition


def test_without_its_condition_a_row_ignores_the_grid(decoder, ids):
    one, other = (decoder(ids, condition(decoder, grids(seed, images=3)).removed())[0] for seed in (0, 1))
    assert torch.equal(one, other)
    sounds = decoder(ids, condition(decoder, grids(0, sounds=3)).removed())[0]
    torch.testing.assert_close(one, sounds, **CLOSE)


def test_the_condition_is_removed_from_the_rows_that_were_named(decoder, ids):
    seen = condition(decoder, grids(0, images=3))
    some = decoder(ids, seen.removed(torch.tensor([False, True, False])))[0]
    with_it, without = decoder(ids, seen)[0], decoder(ids, seen.removed())[0]
    torch.testing.assert_close(some, torch.stack([with_it[0], without[1], with_it[2]]), **CLOSE)
    assert (with_it - without).abs().amax((1, 2)).min() > 0.01


def test_both_branches_go_through_one_batch(decoder, ids):
    seen = condition(decoder, grids(0, images=3))
    both = decoder(torch.cat([ids, ids[[2]]]), seen.joined(seen[torch.tensor([2])].removed()))[0]
    torch.testing.assert_close(both[:3], decoder(ids, seen)[0], **CLOSE)
    torch.testing.assert_close(both[3:], decoder(ids, seen.removed())[0][2:], **CLOSE)


def test_with_its_condition_a_row_looks_at_the_grid(decoder, ids):
    one, other = (decoder(ids, condition(decoder, grids(seed, images=3)))[0] for seed in (0, 1))
    assert (one - other).abs().max() > 0.01


def test_a_bottleneck_looks_at_one_token_made_of_all_cells(decoder, ids):
    narrow = randomised(CaptionDecoder(replace(decoder.config, bottleneck=True)))
    both = grids(0, images=2, sounds=1)
    seen = condition(narrow, both)
    assert seen.mask.shape[-1] == seen.nulls + 1
    before = narrow(ids, seen)[0]
    both["image"][0, 30] += torch.linspace(-9, 9, 24)  # one cell of the first row
    moved = (narrow(ids, condition(narrow, both))[0] - before).abs().amax((1, 2))
    assert moved[0] > 1e-3 and moved[1:].max() < 1e-4


def test_the_null_cell_is_not_seen_beside_a_grid(decoder, ids):
    before = decoder(ids, condition(decoder, grids(0, images=3)))[0]
    null = decoder.null.clone()
    decoder.null.add_(torch.linspace(-3, 3, DIM))
    after = decoder(ids, condition(decoder, grids(0, images=3)))[0]
    decoder.null.copy_(null)
    torch.testing.assert_close(before, after, **CLOSE)


def test_padding_cells_of_a_mixed_batch_change_nothing(decoder, ids):
    both = grids(0, images=2, sounds=1)
    mixed = decoder(ids, condition(decoder, both))[0]
    pictures = decoder(ids[:2], condition(decoder, {"image": both["image"]}))[0]
    sounds = decoder(ids[2:], condition(decoder, {"audio": both["audio"]}))[0]
    torch.testing.assert_close(mixed, torch.cat([pictures, sounds]), **CLOSE)


def test_rows_stand_in_the_order_that_was_asked_for(decoder, ids):
    both = grids(0, images=2, sounds=1)
    plain = decoder(ids, condition(decoder, both))[0]
    turned = decoder(ids[[2, 0, 1]], condition(decoder, both, order=[2, 0, 1]))[0]
    torch.testing.assert_close(turned, plain[[2, 0, 1]], **CLOSE)
    picked = decoder(ids[[1, 1]], condition(decoder, both)[torch.tensor([1, 1])])[0]
    torch.testing.assert_close(picked, plain[[1, 1]], **CLOSE)


# ------------------------------------------------------------------------------------------------- the other nets


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_a_captions_vector_does_not_depend_on_the_padding_of_its_batch(ids, pooling):
    tower = randomised(TextTower(MatcherConfig(vocab=VOCAB, dim=DIM, layers=2, embed=16, pooling=pooling)))
    short = ids[:1, :4].clamp(min=1)
    padded = torch.cat([short, torch.zeros(1, 5, dtype=torch.long)], 1)
    torch.testing.assert_close(tower(padded), tower(short), **CLOSE)
    torch.testing.assert_close(tower.from_embeddings(tower.tokens(short), short != 0), tower(short), **CLOSE)
    assert torch.isfinite(tower(torch.zeros(1, 3, dtype=torch.long))).all()


def test_log_likelihood_is_the_sum_over_what_is_not_padding():
    lm = randomised(RecurrentLM(RecurrentLMConfig(vocab=VOCAB, dim=8, hidden=8)))
    row = torch.tensor([[1, 5, 9, 2, 0, 0]])
    logp = lm(row[:, :-1]).log_softmax(-1)[0]
    by_hand = logp[0, 5] + logp[1, 9] + logp[2, 2]
    torch.testing.assert_close(sequence_log_likelihood(lm(row[:, :-1]), row[:, 1:], pad=0)[0], by_hand)


def test_a_block_says_the_same_of_positions_that_are_there_with_and_without_the_padding():
    block = randomised(Block(DIM, 2, DIM))
    x, there = torch.randn(3, 6, DIM), torch.arange(6) < torch.tensor([[6], [2], [4]])
    past, context = ([torch.randn(3, 2, 5, DIM // 2) for _ in range(2)] for _ in range(2))
    mask = torch.cat([torch.ones(3, 5, dtype=torch.bool), there], 1)[:, None, None]
    places = Places.of(there)
    whole, _ = block(x, mask, tuple(past), tuple(context))
    few, _ = block(places.gather(x), mask, tuple(past), tuple(context), places=places)
    assert few.shape == (12, DIM)
    torch.testing.assert_close(few, whole[there], **CLOSE)
    torch.testing.assert_close(places.spread(few), whole * there[..., None], **CLOSE)


def test_a_block_asked_of_some_positions_looks_at_all_of_them():
    torch.manual_seed(0)
    block = Block(DIM, 2).eval()
    there = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
    some = there & (torch.rand(2, 4) < 0.6)
    x, places, asked = torch.randn(2, 4, DIM), Places.of(there), Places.of(some)
    whole, _ = block(places.gather(x), there[:, None, None], places=places)
    few, _ = block(places.gather(x), there[:, None, None], places=places, asked=asked)
    assert 0 < len(few) < len(whole)
    torch.testing.assert_close(few, whole[places.find(asked)], **CLOSE)


def test_places_of_a_batch_without_padding_are_all_of_it():
    x, places = torch.randn(2, 3, 4), Places.of(torch.ones(2, 3, dtype=torch.bool))
    assert places.all
    assert torch.equal(places.spread(places.gather(x)), x)

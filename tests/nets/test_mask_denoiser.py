"""Method 3's nets: the quantiser against the plain definition, the denoiser's inputs one by one, and what its
training draws.
"""

import random

import pytest
import torch

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.mask_denoiser import MaskDenoiser, MaskDenoiserConfig, warm_start
from captioners.nets.vq import VQAutoencoder, VQConfig
from captioners.training.mask_denoiser import RECIPE, Example, noisy_batch

SMALL = {
    "vocab": 40,
    "dim": 16,
    "text_layers": 1,
    "cross_layers": 1,
    "heads": 2,
    "max_tokens": 12,
    "image_cells": 6,
    "audio_cells": 4,
}


@pytest.fixture
def net() -> MaskDenoiser:
    torch.manual_seed(0)
    net = MaskDenoiser(MaskDenoiserConfig(**SMALL, image_codes=20, audio_codes=10, longest=8, image_rows=2)).eval()
    for parameter in net.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return net.requires_grad_(False)


@pytest.fixture
def vq() -> VQAutoencoder:
    torch.manual_seed(0)
    return VQAutoencoder(VQConfig(codes=12, dim=8, hidden=16, media_dim=10, rows=2))


# ------------------------------------------------------------------------------------------------------ the quantiser


def test_a_cell_becomes_its_nearest_code(vq):
    grid = torch.randn(3, 6, 10)
    assert torch.equal(vq.encode(grid), torch.cdist(vq.enter(grid), vq.codebook.expand(3, -1, -1)).argmin(-1))
    out = vq.eval()(grid)
    assert torch.equal(out.codes, vq.encode(grid))
    torch.testing.assert_close(out.reconstruction, vq.decode(out.codes))


def test_the_codebook_is_the_moving_average_of_its_cells(vq):
    """Against the textbook's two accumulators, sums and counts."""
    counts, sums, decay = torch.ones(12), vq.codebook.clone(), vq.config.decay
    vq.train()
    for _ in range(20):
        grid = torch.randn(5, 6, 10)
        z, codes = vq.enter(grid).detach().flatten(0, 1), vq.encode(grid).flatten()
        members = torch.nn.functional.one_hot(codes, 12).float()
        counts, sums = decay * counts + (1 - decay) * members.sum(0), decay * sums + (1 - decay) * members.T @ z
        vq(grid)
        assert torch.allclose(vq.codebook, sums / counts[:, None], atol=1e-4)


def test_a_code_that_nobody_uses_is_restarted_at_a_cell(vq):
    vq.codebook[3], vq.counts[3] = 1e3, 0.01
    grid = torch.randn(4, 6, 10)
    vq.train()(grid)
    cells = vq.enter(grid).flatten(0, 1)
    assert (cells - vq.codebook[3]).norm(dim=1).min() < 1e-5
    assert vq.counts[3] == 1


def test_nothing_moves_once_it_is_trained(vq):
    before = vq.codebook.clone()
    vq.eval()(torch.randn(4, 6, 10))
    assert torch.equal(before, vq.codebook)


def test_learning_brings_the_features_back(vq):
    source = torch.Generator().manual_seed(1)
    kinds = torch.randn(4, 10, generator=source)
    optimizer = torch.optim.Adam(vq.parameters(), 1e-2)
    losses = []
    for _ in range(150):
        grid = kinds[torch.randint(4, (16, 6), generator=source)] + 0.05 * torch.randn(16, 6, 10, generator=source)
        loss = vq.train().loss(grid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


# ------------------------------------------------------------------------------------------------------- the denoiser


def logits(net, codes, x_t, t=50, start=1, lengths=None, kind="image") -> torch.Tensor:
    condition = net.condition({kind: codes}, torch.arange(len(codes)))
    rows = torch.full((len(codes),), 1)
    lengths = torch.full((len(codes),), x_t.shape[1]) if lengths is None else lengths
    return net(rows * start, x_t, rows * t, condition, lengths)


def test_every_input_of_the_denoiser_matters(net):
    codes, x_t = torch.randint(20, (1, 6)), torch.tensor([[7, net.mask, 9, net.mask]])
    base = logits(net, codes, x_t)
    assert base.shape == (1, 4, 40)
    changed = {
        "a code": logits(net, (codes + 1) % 20, x_t),
        "a word before": logits(net, codes, torch.tensor([[8, net.mask, 9, net.mask]])),
        "a word behind": logits(net, codes, torch.tensor([[7, net.mask, 10, net.mask]])),
        "the time": logits(net, codes, x_t, t=80),
        "the start token": logits(net, codes, x_t, start=2),
    }
    for name, other in changed.items():
        assert (other[0, 1] - base[0, 1]).abs().max() > 1e-3, name


def test_padding_behind_a_row_changes_nothing(net):
    codes, x_t = torch.randint(20, (2, 6)), torch.tensor([[7, net.mask, 9, 0, 0], [5, 6, 7, 8, net.mask]])
    together = logits(net, codes, x_t, lengths=torch.tensor([3, 5]))
    assert torch.allclose(together[:1, :3], logits(net, codes[:1], x_t[:1, :3]), atol=1e-5)
    assert torch.allclose(together[1:], logits(net, codes[1:], x_t[1:]), atol=1e-5)


def test_a_condition_that_is_masked_whole_tells_nothing(net):
    x_t = torch.full((2, 4), net.mask)
    codes = torch.randint(20, (2, 6))
    gone = net.masked("image", codes, torch.ones(2, 6, dtype=torch.bool))
    assert torch.equal(gone[0], gone[1])
    assert torch.equal(*logits(net, gone, x_t).chunk(2))
    some = net.masked("image", codes, torch.tensor([[True, False] * 3] * 2))
    assert (some == 20).tolist() == [[True, False] * 3] * 2
    assert not torch.equal(*logits(net, some, x_t).chunk(2))


def test_pictures_and_sounds_share_a_batch(net):
    shown, heard = torch.randint(20, (2, 6)), torch.randint(10, (1, 4))
    both = net.condition({"image": shown, "audio": heard}, torch.tensor([0, 2, 1]))  # picture, sound, picture
    start, t, x_t, lengths = (
        torch.ones(3, dtype=torch.long),
        torch.full((3,), 9),
        torch.full((3, 5), net.mask),
        torch.full((3,), 5),
    )
    together = net(start, x_t, t, both, lengths)
    assert torch.allclose(together[[0, 2]], logits(net, shown, x_t[:2], t=9), atol=1e-5)
    assert torch.allclose(together[1:2], logits(net, heard, x_t[:1], t=9, kind="audio"), atol=1e-5)
    lengths = net.length_logits(start, both)
    assert lengths.shape == (3, 8)
    assert torch.allclose(
        lengths[[1]], net.length_logits(start[:1], net.condition({"audio": heard}, torch.tensor([0]))), atol=1e-5
    )


def test_a_warm_start_takes_the_decoder_over(net):
    torch.manual_seed(1)
    decoder = CaptionDecoder(CaptionerConfig(**SMALL))
    tables = {"image": torch.randn(20, 16), "audio": torch.randn(10, 16)}
    warm_start(net, decoder, tables, mask=3, end=2)
    assert torch.equal(net.tokens.weight, decoder.tokens.weight)
    assert torch.equal(net.marks.weight, decoder.tokens.weight[[3, 2]])
    assert torch.equal(net.codes["image"].weight, torch.cat([tables["image"], decoder.null[None]]))
    for mine, theirs in zip(net.blocks.parameters(), decoder.blocks.parameters(), strict=True):
        assert torch.equal(mine, theirs)


# ------------------------------------------------------------------------------------------------------- its training


def test_training_masks_as_the_strategy_says(net):
    rng = random.Random(0)
    some = [Example("image", 1, [5, 6, 7], torch.randint(20, (6,))) for _ in range(64)]
    batches = [noisy_batch(net, some, rng) for _ in range(60)]
    hidden = torch.cat([(b.codes == 20).float().mean(1) for b in batches])
    # a low rate may hide none of six cells
    assert (hidden > 0).float().mean().item() == pytest.approx(RECIPE.masked, abs=0.06)
    assert (hidden == 1).float().mean().item() == pytest.approx(RECIPE.masked * RECIPE.removed, abs=0.05)
    assert set(torch.cat([b.t for b in batches]).tolist()) == set(range(1, 101))
    assert max((b.t.float().mean() - 50.5).abs().item() for b in batches) < 1  # spread evenly within every batch


def test_texts_without_media_see_no_codes_and_long_ones_are_cut(net):
    batch = noisy_batch(net, [Example("audio", 4, list(range(5, 25)), None)] * 3, random.Random(0))
    assert (batch.codes == 10).all()
    assert batch.lengths.tolist() == [8, 8, 8]
    assert batch.start.tolist() == [4, 4, 4]

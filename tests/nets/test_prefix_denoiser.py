"""Method 4's network, and how its training starts."""

from dataclasses import asdict

import pytest
import torch
from fakes import restless

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.nets.regions import REGIONS, pooled_regions, region_cells
from captioners.profiles.store import load_into, read_config, save_part
from captioners.training.prefix_denoiser import jittered, parameters_against_clipcap, warm_start


def test_the_word_itself_is_heard_as_bayes_says():
    """With a network that says nothing, the head's distribution is the posterior q(word | x_t) under equal priors."""
    net = restless(50)
    net.bias.zero_()
    net.leave.weight.zero_()
    net.leave.bias.zero_()
    x, level = torch.randn(1, 3, 48), torch.tensor([0.3])
    prefix = net.prefix({}, torch.tensor([0]), torch.tensor([0]))
    distance = (x[:, :, None] - level.sqrt() * net.table()).square().sum(-1)
    expected = (-distance / (2 * (1 - level))).log_softmax(-1)
    assert torch.allclose(net(x, level, prefix, torch.tensor([0])).log_softmax(-1), expected, atol=1e-4)


@pytest.mark.parametrize("regions", REGIONS)
def test_positions_that_are_not_there_change_nothing(regions):
    net = restless(50, regions)
    prefix, level, count = (
        net.prefix({"image": torch.randn(1, regions, 16)}, torch.tensor([0]), torch.tensor([3])),
        torch.tensor([0.2]),
        torch.tensor([5]),
    )
    x = torch.randn(1, 9, 48)
    there = (torch.arange(9) < 6)[None]
    assert torch.allclose(
        net(x, level, prefix, count, None, there)[:, :6], net(x[:, :6], level, prefix, count), atol=1e-4
    )


def test_a_warm_start_keeps_the_decoders_words_and_layers():
    decoder = CaptionDecoder(CaptionerConfig(vocab=60, dim=48, heads=2))
    net = PrefixDenoiser(PrefixDenoiserConfig(vocab=60, embed=48, dim=48, heads=2))
    warm_start(net, decoder)
    tokens = decoder.tokens.weight - decoder.tokens.weight.mean(0)
    like = torch.nn.functional.normalize(tokens, dim=1)
    # all components kept: all angles kept
    assert torch.allclose(net.table() @ net.table().T / 48, like @ like.T, atol=1e-4)
    assert torch.equal(net.blocks[3].mlp[0].weight, decoder.blocks[3].mlp[0].weight)


@pytest.mark.parametrize("regions", REGIONS)
def test_fewer_parameters_than_a_clipcap_of_the_same_encoder(regions):
    config = PrefixDenoiserConfig(regions=regions)
    ours, theirs = parameters_against_clipcap(config)
    assert ours == sum(p.numel() for p in PrefixDenoiser(config).parameters())
    assert ours < theirs


def test_a_clipcap_has_the_quarters_too():
    """Both sides grow by the layer that reads quarters; ours has four more positions and four more nulls, a language
    model four more positions.
    """
    (ours, theirs), (ours_of_5, theirs_of_5) = (
        parameters_against_clipcap(PrefixDenoiserConfig(regions=regions)) for regions in REGIONS
    )
    layer = 768 * 256 + 256
    assert (ours_of_5 - ours, theirs_of_5 - theirs) == (layer + 2 * 4 * 256, layer + 4 * 256)


def test_a_clean_word_is_taken_for_what_it_is():
    net = restless(50)
    ids, prefix = torch.tensor([[3, 20, 41]]), net.prefix({}, torch.tensor([0]), torch.tensor([0]))
    level = torch.tensor([[1.0, 0.01, 1.0]])
    x = torch.where((level == 1)[..., None], net.embed(ids), torch.randn(1, 3, 48))
    said = net(x, level, prefix, torch.tensor([0])).argmax(-1)
    assert said[0, 0] == 3 and said[0, 2] == 41


# ----------------------------------------------------------------------------------------------------------- regions


def test_weights_without_regions_in_their_header_are_of_the_whole(tmp_path):
    net = restless(50)
    header = {name: value for name, value in asdict(net.config).items() if name != "regions"}
    path = save_part(tmp_path, "prefix-diffusion", net, header)
    loaded = load_into(PrefixDenoiser(PrefixDenoiserConfig(**read_config(path))), path)
    assert loaded.config == net.config and loaded.quarter is None


def test_one_region_is_the_mlp_of_the_mean():
    net, grids = restless(50), torch.randn(3, 49, 16)
    by_hand = net.mlp(net.enter["image"](grids.mean(1))).view(3, 5, 48)
    assert torch.equal(net.prefix_embeddings("image", pooled_regions(grids, "image")), by_hand)


@pytest.mark.parametrize(("kind", "cells", "width"), [("image", 49, 16), ("audio", 20, 12)])
def test_what_changes_in_one_quarter_changes_its_embedding_and_those_of_the_whole(kind, cells, width):
    net, grid = restless(50, regions=5), torch.randn(cells, width)
    quarters = region_cells(kind)[1:]
    before = net.prefix_embeddings(kind, pooled_regions(grid[None], kind, 5))
    assert before.shape == (1, net.config.prefix_length, 48) == (1, 9, 48)
    for i, own in enumerate(quarters):
        changed = grid + (own & (quarters.sum(0) == 1))[:, None] * torch.randn(cells, width)
        moved = (net.prefix_embeddings(kind, pooled_regions(changed[None], kind, 5)) != before).any(-1)[0]
        assert moved.tolist() == [True] * 5 + [j == i for j in range(4)]


def test_equal_quarters_differ_by_their_positions():
    net = restless(50, regions=5)
    assert net.prefix_positions.shape == net.null.shape == (9, 48)
    same = net.prefix_embeddings("image", torch.randn(1, 1, 16).expand(-1, 5, -1))[0, 5:]
    assert torch.allclose(same, same[:1].expand(4, -1), atol=1e-5)
    placed = same + net.prefix_positions[5:]
    assert torch.pdist(placed).min() > 0.1


def test_a_row_that_sees_nothing_has_the_prefix_of_nothing():
    net, tags = restless(50, regions=5), torch.tensor([0, 3])
    pooled, order = {"audio": torch.randn(2, 5, 12)}, torch.arange(2)
    prefix = net.prefix(pooled, order, tags, torch.tensor([True, False]))
    full, none = net.prefix(pooled, order, tags), net.prefix({}, order, tags)
    for (k, _), (k_full, _), (k_none, _) in zip(prefix.keys_values, full.keys_values, none.keys_values, strict=True):
        assert torch.allclose(k[0], k_full[0], atol=1e-5) and torch.allclose(k[1], k_none[1], atol=1e-5)
        assert k.shape == (2, 2, 9, 24)


def test_jitter_is_a_share_of_each_vectors_own_spread():
    torch.manual_seed(0)
    pooled = torch.randn(2, 5, 20_000) * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])[:, None]
    spread = (jittered(pooled, 0.2) - pooled).std(-1)
    assert torch.allclose(spread, 0.2 * pooled.std(-1), rtol=0.05)

"""Method 4's network, and how its training starts."""

import torch
from fakes import restless

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.prefix_denoiser import PrefixDenoiser, PrefixDenoiserConfig
from captioners.training.prefix_denoiser import parameters_against_clipcap, warm_start


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


def test_positions_that_are_not_there_change_nothing():
    net = restless(50)
    prefix, level, count = (
        net.prefix({"image": torch.randn(1, 16)}, torch.tensor([0]), torch.tensor([3])),
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


def test_fewer_parameters_than_a_clipcap_of_the_same_encoder():
    ours, theirs = parameters_against_clipcap(PrefixDenoiserConfig())
    assert ours == sum(p.numel() for p in PrefixDenoiser(PrefixDenoiserConfig()).parameters())
    assert ours < theirs


def test_a_clean_word_is_taken_for_what_it_is():
    net = restless(50)
    ids, prefix = torch.tensor([[3, 20, 41]]), net.prefix({}, torch.tensor([0]), torch.tensor([0]))
    level = torch.tensor([[1.0, 0.01, 1.0]])
    x = torch.where((level == 1)[..., None], net.embed(ids), torch.randn(1, 3, 48))
    said = net(x, level, prefix, torch.tensor([0])).argmax(-1)
    assert said[0, 0] == 3 and said[0, 2] == 41

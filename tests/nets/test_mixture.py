"""p(x) as a mixture of references: what it is made of, token by token, beside rows that see their own input."""

import math

import pytest
import torch
from tiny_captioners import SIDE, tiny_blip, tiny_git
from tiny_hub import tiny_coca

from captioners.nets.coca import CocaDecoder
from captioners.nets.from_transformers import blip_decoder, git_decoder
from captioners.nets.key_value_cache import rows_of
from captioners.nets.mixture import MixtureDecoder
from captioners.nets.replayed import ReplayedDecoder

PICTURES = torch.randn(6, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([[2, 7, 9, 11], [2, 5, 9, 6], [2, 13, 8, 7]])


def coca():
    model = tiny_coca()
    return CocaDecoder(model).eval(), model.visual(PICTURES)[1]


def blip():
    model = tiny_blip()
    return blip_decoder(model).eval(), model.vision_model(PICTURES).last_hidden_state


def git():
    model = tiny_git()
    return git_decoder(model).eval(), model.git.visual_projection(model.git.image_encoder(PICTURES).last_hidden_state)


MADE = {"coca": coca, "blip": blip, "git": git}


@pytest.fixture(scope="module", params=MADE)
def made(request):
    with torch.no_grad():
        return MADE[request.param]()


def said(decoder, grid, ids):
    """log p of every next token, each row of ids (b, t) beside its own grid."""
    return decoder(ids, decoder.condition({"image": grid}, torch.arange(len(grid))))[0].log_softmax(-1)


def brute_force(decoder, references, ids):
    """One reference after the other, and their probabilities averaged."""
    each = [said(decoder, grid.expand(len(ids), -1, -1), ids) for grid in references]
    return torch.logsumexp(torch.stack(each), 0) - math.log(len(each))


def step_by_step(decoder, ids, condition):
    past, rows = None, []
    for tokens in ids.split(1, dim=1):
        logits, past = decoder(tokens, condition, past)
        rows.append(logits)
    return torch.cat(rows, 1).log_softmax(-1), past


@torch.no_grad()
def test_a_mixture_of_one_picture_is_what_is_said_of_that_picture(made):
    decoder, grids = made
    mixture = MixtureDecoder(decoder, {"image": grids[5:]})
    without = mixture.condition({"image": grids[:3]}, torch.arange(3)).removed()
    expected = said(decoder, grids[5:].expand(3, -1, -1), IDS)
    torch.testing.assert_close(mixture(IDS, without)[0], expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_a_mixture_is_the_mean_of_probabilities_token_by_token_beside_rows_that_see_their_own_input(made):
    decoder, grids = made
    mixture = MixtureDecoder(decoder, {"image": grids[3:]})
    own = mixture.condition({"image": grids[:3]}, torch.arange(3))
    both, ids = own.joined(own.removed()), IDS.repeat(2, 1)
    expected = torch.cat([said(decoder, grids[:3], IDS), brute_force(decoder, grids[3:], IDS)])
    logp, _ = step_by_step(mixture, ids, both)
    torch.testing.assert_close(logp, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(mixture(ids, both)[0].log_softmax(-1), expected, atol=1e-4, rtol=0)  # all at once
    assert torch.allclose(logp.exp().sum(-1), torch.ones(6, 4), atol=1e-4)
    assert not torch.allclose(expected[:3], expected[3:], atol=1e-2)


@torch.no_grad()
def test_rows_change_places_leave_and_go_on_twice(made):
    decoder, grids = made
    mixture = MixtureDecoder(decoder, {"image": grids[3:]})
    own = mixture.condition({"image": grids[:3]}, torch.arange(3))
    condition, ids = own.joined(own.removed()), IDS.repeat(2, 1)
    _, past = step_by_step(mixture, ids[:, :3], condition)
    rows = torch.tensor([4, 1, 1, 5, 0])
    logits, _ = mixture(ids[rows, 3:], condition[rows], rows_of(past, rows))
    expected = torch.cat([said(decoder, grids[:3], IDS), brute_force(decoder, grids[3:], IDS)])[rows, 3:]
    torch.testing.assert_close(logits.log_softmax(-1), expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_some_rows_can_be_removed_and_cells_of_the_others_hidden(made):
    decoder, grids = made
    mixture = MixtureDecoder(decoder, {"image": grids[3:]})
    condition = mixture.condition({"image": grids[:3]}, torch.arange(3)).removed(torch.tensor([False, True, False]))
    hidden = torch.zeros(3, grids.shape[1], dtype=torch.bool)
    hidden[:, 0] = True
    logits, _ = mixture(IDS, condition.without(hidden))
    blind = decoder.condition({"image": grids[:3]}, torch.arange(3)).without(hidden)
    expected = decoder(IDS, blind)[0].log_softmax(-1)
    expected[1] = brute_force(decoder, grids[3:], IDS)[1]
    torch.testing.assert_close(logits.log_softmax(-1), expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_rows_that_see_their_own_input_may_be_replayed(made):
    decoder, grids = made
    begun = []

    def record(work):
        begun.append(work)
        return work

    mixture = MixtureDecoder(decoder, {"image": grids[3:]}, seeing=ReplayedDecoder(decoder, record))
    own = mixture.condition({"image": grids[:3]}, torch.arange(3))
    logp, _ = step_by_step(mixture, IDS.repeat(2, 1), own.joined(own.removed()))
    expected = torch.cat([said(decoder, grids[:3], IDS), brute_force(decoder, grids[3:], IDS)])
    torch.testing.assert_close(logp, expected, atol=1e-4, rtol=0)
    assert len(begun) == 1  # the steps after the first went on in the same recording


def test_conditions_of_other_decoders_are_not_joined(made):
    decoder, grids = made
    own = decoder.condition({"image": grids[:3]}, torch.arange(3))
    with pytest.raises(TypeError, match="same decoder"):
        MixtureDecoder(decoder, {"image": grids[3:]}).condition({"image": grids[:3]}, torch.arange(3)).joined(own)


@torch.no_grad()
def test_an_input_that_is_a_reference_is_left_out_of_its_own_mixture(made):
    decoder, grids = made
    mixture = MixtureDecoder(decoder, {"image": grids[1:]})
    nearly = grids[:3] * (1 + 1e-3 * torch.randn(grids[:3].shape, generator=torch.Generator().manual_seed(2)))
    without = mixture.condition({"image": nearly}, torch.tensor([2, 1, 0])).removed()
    assert [row.own for row in without.rows] == [1, 0, None]
    everything = list(grids[1:])
    references = [everything[:1] + everything[2:], everything[1:], everything]
    expected = torch.cat([brute_force(decoder, some, IDS[i : i + 1]) for i, some in enumerate(references)])
    torch.testing.assert_close(mixture(IDS, without)[0], expected, atol=1e-4, rtol=0)
    rows = torch.tensor([2, 1])
    torch.testing.assert_close(mixture(IDS[rows], without[rows])[0], expected[rows], atol=1e-4, rtol=0)
    alone = MixtureDecoder(decoder, {"image": grids[:1]}).condition({"image": grids[:1]}, torch.arange(1)).removed()
    assert alone.rows[0].own is None  # something has to stand there

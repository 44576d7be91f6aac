"""Self-critical training: what is rewarded, what a step does to the captions that were drawn; and the stages after it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from captioners import guidance
from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.training import Job, corpus, finishing
from captioners.training.captioner import Pairs, first_token_kl
from captioners.training.self_critical import LONGEST, Rewards, draw, policy_loss

CAPTIONS = [
    ("a black dog runs through the snow", "a dog is running in the snow", "the black dog plays in the snow"),
    ("two men play guitar on a stage", "a band plays on stage", "two men with guitars on the stage"),
    ("a boy jumps into a swimming pool", "a child jumps into the water", "a boy in a pool"),
    ("a woman rides a bike down the street", "a lady on a bicycle", "a woman cycles along a road"),
]


@pytest.fixture(scope="module")
def pairs(embedded, tmp_path_factory) -> Pairs:
    job = Job(Path("none"), tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("cache"), device="cpu", quiet=True)
    pictures = [corpus.Picture(Path(f"{i}.jpg"), "train", c) for i, c in enumerate(CAPTIONS)]
    features = torch.randn(1, len(pictures), 49, 512, generator=torch.Generator().manual_seed(0))
    return Pairs(job, embedded.players.tokenizer, {"train": features}, {"train": pictures}, [], None)


@pytest.fixture(scope="module")
def rewards(pairs) -> Rewards:
    return Rewards(pairs.job, pairs)


def test_a_caption_that_agrees_with_its_picture_s_references_is_rewarded(rewards):
    texts = [c for group in zip(["a black dog runs in the snow"] * 4, ["a girl eats a cake at home"] * 4, strict=True) for c in group]
    found = rewards(torch.tensor([0, 1, 2, 3]), texts)
    assert found.shape == (4, 2)
    better = found[:, 0] - found[:, 1]
    assert better[0] > 1 and better[0] > better[1:].max() + 0.5


def test_rewards_do_not_depend_on_the_order_of_the_captions(rewards):
    one, two = ["a dog in the snow", "a band on stage"], ["a boy in a pool", "a man"]
    ahead = rewards(torch.tensor([0, 2]), one + two)
    behind = rewards(torch.tensor([2, 0]), two[::-1] + one[::-1])
    assert torch.allclose(ahead, behind.flip(0, 1), atol=1e-5)


def test_a_step_makes_the_better_sibling_likelier():
    targets = torch.tensor([[1, 2, 0], [3, 2, 4]])  # two captions of one picture; 0 is padding
    logits = torch.zeros(2, 3, 6, requires_grad=True)
    policy_loss(logits, targets, torch.tensor([[1.0, 0.2]]), pad=0).backward()
    moved = (logits - logits.grad).log_softmax(-1)
    before = torch.zeros(6).log_softmax(-1)[0]
    assert moved[0, 0, 1] > before and moved[0, 1, 2] > before
    assert moved[1, 0, 3] < before and moved[1, 2, 4] < before
    assert logits.grad[0, 2].abs().sum() == 0  # nothing is learned from padding


def test_equal_rewards_teach_nothing():
    logits = torch.randn(4, 3, 6, requires_grad=True)
    policy_loss(logits, torch.randint(1, 6, (4, 3)), torch.full((2, 2), 0.7), pad=0).backward()
    assert logits.grad.abs().max() < 1e-7


def test_drawn_captions_are_padded_behind_their_end(embedded):
    tokenizer = embedded.players.tokenizer
    torch.manual_seed(0)
    model = CaptionDecoder(CaptionerConfig(vocab=len(tokenizer), dim=16, heads=2)).eval()
    with torch.no_grad():
        model.tokens.weight[tokenizer.eos] += model.tokens.weight.std() * 6  # ends come soon
    condition = model.condition({"image": torch.randn(8, 49, 512)}, torch.arange(8))
    ids = draw(model, tokenizer, condition, tokenizer.start("image"))
    assert ids.shape[0] == 8 and ids.shape[1] <= LONGEST + 1
    assert (ids[:, 0] == tokenizer.start("image")).all()
    for row in ids.tolist():
        if tokenizer.eos in row:
            assert set(row[row.index(tokenizer.eos) + 1 :]) <= {tokenizer.pad}


# --------------------------------------------------------------------------------------------- the stages after it


@pytest.fixture
def tiny(pairs, monkeypatch) -> tuple[CaptionDecoder, Pairs]:
    """A decoder to which matters what it sees, and four pictures."""
    for constant, value in (("NULL_STEPS", 30), ("NULL_PICTURES", 4), ("SHARPER_STEPS", 60), ("SHARPER_PICTURES", 4), ("SHARPER_LR", 3e-3)):
        monkeypatch.setattr(finishing, constant, value)
    monkeypatch.setattr(Pairs, "evaluate", lambda self, model: {"cider": 0.0})
    torch.manual_seed(0)
    shape = {"dim": 32, "text_layers": 1, "cross_layers": 1, "heads": 2, "dropout": 0.0}
    decoder = CaptionDecoder(CaptionerConfig(vocab=len(pairs.tokenizer), **shape))
    for weight in (p for p in decoder.parameters() if p.ndim > 1):
        torch.nn.init.normal_(weight, std=0.3)
    torch.nn.init.normal_(decoder.null)
    rows = [pairs.tokenizer.encode_all(c) for c in CAPTIONS]
    return decoder, replace(pairs, rows=rows)


def test_the_null_cell_learns_the_average_and_nothing_else_moves(tiny):
    """p(x) comes nearer to the average of p(x|y), which stays as it is."""
    decoder, four = tiny
    start, grids = four.tokenizer.start("image"), four.features["train"][0]
    before, kl = {k: v.clone() for k, v in decoder.state_dict().items()}, first_token_kl(decoder, start, grids)
    kept = []
    finishing.fit_marginal("tiny", four.job, decoder, four, kept.append)
    after = kept[0].state_dict()
    assert [k for k in before if not torch.equal(before[k], after[k])] == ["null"]
    assert first_token_kl(kept[0], start, grids) < 0.8 * kl


def test_the_conditional_branch_learns_what_guidance_makes_of_it(tiny, monkeypatch):
    monkeypatch.setattr(finishing, "SCALE", 2.0)
    decoder, four = tiny
    ids = torch.full((4, 1), four.tokenizer.start("image"))

    @torch.no_grad()
    def first_words(model: CaptionDecoder, scale: float) -> torch.Tensor:
        seen = model.condition({"image": four.features["train"][0]}, torch.arange(4))
        return guidance.cfg(*(model(ids, c)[0][:, 0].log_softmax(-1) for c in (seen, seen.removed())), scale).log_softmax(-1)

    plain, wanted = first_words(decoder, 1.0), first_words(decoder, 2.0)
    sharper, _ = finishing.sharpen("tiny-sharpen", four.job, decoder, four)
    found = first_words(sharper, 1.0)
    assert guidance.kl(wanted, found).mean() < 0.5 * guidance.kl(wanted, plain).mean()


def test_going_back_ends_halfway_between_two_models(tiny, monkeypatch):
    decoder, four = tiny
    before, ends = {k: v.clone() for k, v in decoder.state_dict().items()}, {}

    def other_end(job, name, model, *rest, **how):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)
        ends.update({k: v.clone() for k, v in model.state_dict().items()})
        return model, {}

    monkeypatch.setattr(finishing, "fit", other_end)
    after, _ = finishing.go_back("tiny-back", four.job, decoder, four)
    for key, value in after.state_dict().items():
        assert torch.allclose(value, (before[key] + ends[key]) / 2)

"""The second stage of part `cfg`: self-critical training (arXiv 1612.00563) of the conditional branch.

Captions are drawn from the model and made likelier or less likely than their siblings by a reward: CIDEr-D against the five references,
and how much better the ranker matches them to their own picture than to others. The unconditional branch learns the drawn captions by
likelihood; sounds and human captions go on as before.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from pycocoevalcap.cider.cider_scorer import cook_refs, cook_test
from torch import Tensor

from captioners.metrics.ngram import CiderD, plain
from captioners.nets.captioner import CaptionDecoder, Condition
from captioners.nets.matcher import MatcherConfig, MatcherNet
from captioners.profiles.store import load_into, read_config
from captioners.text import CaptionTokenizer
from captioners.training import Job
from captioners.training.loop import fit

if TYPE_CHECKING:
    from captioners.training.captioner import Examples, Pairs

ROUNDS, STEPS, LR = 10, 60, 2.5e-4
PICTURES, SAMPLES = 32, 5  # of one step
TEMPERATURE = 0.8  # of the policy: what is drawn and what is made likelier are the same distribution
TELLING_APART = 2.0  # weight of the ranker's reward beside CIDEr's; at 3 it is content with a baby baby baby
LIKELIHOOD, MARGINAL = 0.25, 0.5  # weights of the likelihood terms beside the reward's
LONGEST = 24
EMA = 0.998  # over eight rounds: weights that were rounds apart are better on average than each of them

Batch = tuple[Tensor, Tensor, "Examples"]  # pictures (p,), their grids (p, cells, c), and human captions


class Rewards:
    """CIDEr-D with the training references' idf, plus what the ranker says, for drawn captions of training pictures."""

    def __init__(self, job: Job, pairs: Pairs):
        references = [[plain(c) for c in p.captions] for p in pairs.pictures["train"]]
        self.references = [cook_refs(r) for r in references]
        self.cider = CiderD(list(range(len(references))))
        self.cider.crefs = self.references
        self.cider.compute_doc_freq()
        weights = job.find("image-ranker")
        config = {k: v for k, v in read_config(weights).items() if k != "calibration"}
        self.ranker = load_into(MatcherNet(MatcherConfig(**config)), weights).eval().requires_grad_(False)
        self.tokenizer = pairs.tokenizer
        with torch.no_grad():
            self.media = torch.cat([self.ranker.media(chunk.float()) for chunk in pairs.features["train"][0].split(256)])

    def __call__(self, pictures: Tensor, texts: list[str]) -> Tensor:
        """(p, k) for k captions of each of p pictures, in order."""
        each = len(texts) // len(pictures)
        self.cider.crefs = [self.references[i] for i in pictures.tolist() for _ in range(each)]
        self.cider.ctest = [cook_test(plain(t)) for t in texts]
        agreed = torch.tensor(self.cider.compute_cider(), dtype=torch.float32).view(-1, each)
        with torch.no_grad():
            said = self.ranker.text(self.tokenizer.batch(self.tokenizer.encode_all(texts)))
        alike = (said @ self.media[pictures].T).view(len(pictures), each, -1)
        own = alike.diagonal(dim1=0, dim2=2).T
        return agreed + TELLING_APART * (own - alike.mean(-1))


@torch.no_grad()
def draw(model: CaptionDecoder, tokenizer: CaptionTokenizer, condition: Condition, start: int, temperature: float = TEMPERATURE) -> Tensor:
    """Captions from the policy, (b, t): ids with start and end, padded behind the end."""
    rows = len(condition.mask)
    device = condition.mask.device
    ids, past = torch.full((rows, 1), start, device=device), None
    found, done = [ids], torch.zeros(rows, dtype=torch.bool, device=device)
    for _ in range(LONGEST):
        logits, past = model(ids, condition, past)
        ids = torch.multinomial((logits[:, -1] / temperature).softmax(-1), 1)
        ids[done] = tokenizer.pad
        found.append(ids)
        done |= ids[:, 0] == tokenizer.eos
        if done.all():
            break
    return torch.cat(found, 1)


def policy_loss(logits: Tensor, targets: Tensor, rewards: Tensor, pad: int) -> Tensor:
    """REINFORCE with the mean of a caption's siblings as its baseline: logits (p·k, t, v), targets (p·k, t), rewards (p, k)."""
    siblings = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    advantage = (rewards - siblings).flatten()
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=pad)
    return (advantage[:, None] * losses).sum() / (targets != pad).sum()


def fit_rewards(name: str, job: Job, decoder: CaptionDecoder, pairs: Pairs) -> tuple[CaptionDecoder, dict[str, Any]]:
    """Train on rewards; returns what `fit` does."""
    rewards, tokenizer = Rewards(job, pairs), pairs.tokenizer

    def batches(epoch: int) -> Iterator[Batch]:
        rng = random.Random(job.seed * 1000 + 500 + epoch)
        human = itertools.islice(pairs.batches(epoch), STEPS)
        for examples in human:
            pictures = torch.tensor(rng.sample(range(len(pairs.rows)), PICTURES))
            yield pictures, pairs.grids(pictures, rng), examples

    def loss(model: CaptionDecoder, batch: Batch) -> Tensor:
        pictures, grids, examples = batch
        device = model.null.device
        rows = torch.arange(PICTURES, device=device).repeat_interleave(SAMPLES)
        model.eval()
        with torch.no_grad():
            seen = model.condition({"image": grids.to(device)}, torch.arange(PICTURES, device=device))[rows]
        ids = draw(model, tokenizer, seen, tokenizer.start("image"))
        model.train()
        found = rewards(pictures, [tokenizer.decode(row) for row in ids.tolist()])
        condition = model.condition({"image": grids.to(device)}, torch.arange(PICTURES, device=device))[rows]
        logits, _ = model(ids[:, :-1], condition)
        targets = ids[:, 1:]
        rewarded = policy_loss(logits / TEMPERATURE, targets, found.to(device), tokenizer.pad)
        few = torch.arange(0, len(ids), SAMPLES, device=device)  # one caption of each picture
        alone, _ = model(ids[few, :-1], condition[few].removed())
        marginal = F.cross_entropy(alone.flatten(0, 1), targets[few].flatten(), ignore_index=tokenizer.pad)
        return rewarded + MARGINAL * marginal + LIKELIHOOD * pairs.likelihood(model, examples)

    return fit(job, f"{name}-rewards", decoder, batches, STEPS, loss, pairs.evaluate, ROUNDS, LR, "cider", weight_decay=0.0, ema=EMA)

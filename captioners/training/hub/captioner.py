"""Part `cfg` of the hub profile: CoCa's decoders fine-tuned with the picture removed from half of the examples (arXiv
2307.16686).

The picture tower stays as it is. What stands for no picture is learned too. The output is an open_clip folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from captioners.nets.coca import CocaDecoder
from captioners.profiles.base import ProfileError
from captioners.profiles.hub.fetching import fetch
from captioners.profiles.hub.method_models import CaptionerFamilyModels, SharedModels
from captioners.profiles.hub.model_loader import ModelLoader
from captioners.training import Job, Recipe
from captioners.training.captioner import first_token_kl, greedy
from captioners.training.hub.pairs import Pairs, library_of
from captioners.training.loop import fit

MAX_TOKENS = 40

Batch = tuple[
    Tensor, Tensor, Tensor
]  # ids (b, t), picture tokens (b, cells, width), keep (b,) False where the picture is removed


@dataclass(frozen=True)
class FineTuning(Recipe):
    """How CoCa's decoders are taught to do without their picture."""

    removed: float = 0.5  # share of examples without their picture: the paper's


RECIPE = FineTuning(epochs=1, batch=32, lr=1e-5, ema=0.999)


class CaptionLoss(nn.Module):
    """Cross-entropy of the captions, with their pictures or without."""

    def __init__(self, decoder: CocaDecoder, pad: int):
        super().__init__()
        self.decoder, self.pad = decoder.requires_grad_(True), pad

    def forward(self, ids: Tensor, grids: Tensor, keep: Tensor) -> Tensor:
        condition = self.decoder.condition({"image": grids}, torch.arange(len(ids), device=ids.device))
        logits, _ = self.decoder(ids[:, :-1], condition.removed(~keep))
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), ignore_index=self.pad)


def train(name: str, job: Job) -> dict[str, Any]:
    (recipe,) = job.configured(RECIPE)
    pairs, library = Pairs.load(job), library_of(job)
    seat = CaptionerFamilyModels(SharedModels(library))
    if seat.model.net is None:
        raise ProfileError("Only a CoCa can be fine-tuned here: name one for captioner with --models FILE.")
    tokenizer, learner = seat.tokenizer, CaptionLoss(seat.caption_decoder(), seat.tokenizer.pad)

    def batches(epoch: int) -> Iterator[Batch]:
        for media, captions, rng in pairs.batches(epoch, recipe.batch):
            ids = tokenizer.batch([[tokenizer.bos, *tokenizer.encode(c)[:MAX_TOKENS], tokenizer.eos] for c in captions])
            grids = torch.stack([f.grid for f in seat.encode(media)])
            yield ids, grids, torch.tensor([rng.random() >= recipe.removed for _ in captions])

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(*(x.to(library.device) for x in batch))

    def evaluate(model: CaptionLoss) -> dict[str, float]:
        def captions(media) -> list[str]:
            return greedy(model.decoder, tokenizer, "image", torch.stack([f.grid for f in seat.encode(media)]))

        shown = torch.stack([f.grid for f in seat.encode(next(m for m, *_ in pairs.batches(0, 8)))])
        return pairs.measure(captions) | {"first_token_kl": first_token_kl(model.decoder, tokenizer.bos, shown)}

    def save(model: CaptionLoss) -> None:
        save_coca(job.out / name, seat, model.decoder, library)

    return fit(
        job, f"hub-{name}", learner, batches, pairs.steps(recipe.batch), loss, evaluate, recipe, "cider", save=save
    )[1]


def save_coca(folder: Path, seat: CaptionerFamilyModels, decoder: CocaDecoder, library: ModelLoader) -> None:
    """An open_clip folder with the picture tower as it was and these decoders, and the token that stands for no
    picture.
    """
    coca = seat.model.net
    source = library.sources["captioner"]
    state = dict(coca.state_dict())
    state |= {f"text.{k}": v for k, v in decoder.text.state_dict().items()}
    state |= {f"text_decoder.{k}": v for k, v in decoder.multimodal.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.detach().cpu().contiguous().clone() for k, v in state.items()}, folder / "open_clip_model.safetensors"
    )
    save_file({"null": decoder.null.detach().cpu().float().contiguous()}, folder / "null.safetensors")
    known = fetch("captioner", source) / "open_clip_config.json"
    config = (
        json.loads(known.read_text())
        if known.is_file()
        else {"model_cfg": open_clip.get_model_config(source.architecture)}
    )
    (folder / "open_clip_config.json").write_text(json.dumps({"preprocess_cfg": {}, **config}, indent=1))

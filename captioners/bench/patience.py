"""The yardstick of a visitor's patience: all our captions of a picture against one of a full-size captioner."""

from __future__ import annotations

import torch

from captioners import registry
from captioners.bench.core import Work, contest
from captioners.bench.inputs import captions, picture
from captioners.profiles.base import Profile

TOKENS = 20


@contest(
    "page_vs_open_clip",
    f"every method's caption of an encoded picture against one greedy caption of {TOKENS} tokens by open_clip's coca_ViT-B-32",
    "picture",
    repeats=3,
)
def page(profile: Profile) -> tuple[Work, Work]:
    """Our methods one after the other, each with its own defaults, as the page runs them."""
    methods, one = [captions(spec.id, profile) for spec in registry.available()], [picture(0)]
    return lambda: max(len(caption(one)) for caption in methods), open_clip_caption(profile.players.device)


def open_clip_caption(device: str, name: str = "coca_ViT-B-32", tokens: int = TOKENS) -> Work:
    """open_clip's greedy loop: the picture is encoded once, every token reads the whole prefix again. Weights are random: time is the same.

    Written out from `CoCa.generate`, which does not import beside this transformers.
    """
    import open_clip

    model = open_clip.create_model(name, device=device).eval()
    pixels = torch.rand(1, 3, 224, 224, device=device)

    @torch.no_grad()
    def caption() -> int:
        latent, cells = model._encode_image(pixels)
        text = torch.full((1, 1), 49406, device=device)
        for _ in range(tokens):
            logits = model(pixels, text, image_latent=latent, image_embs=cells, output_labels=False)["logits"]
            text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)
        return 1

    return caption

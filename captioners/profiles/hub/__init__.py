"""The hub profile: the same methods on pretrained models from the Hugging Face Hub or from folders, a GPU used where
there is one.
"""

from __future__ import annotations

from typing import Any

import torch

from captioners.profiles.base import Profile, ProfileError
from captioners.profiles.hub.judges import HubJudges
from captioners.profiles.hub.method_models import (
    CaptionerFamilyModels,
    FallbackModels,
    Gpt2Models,
    MaskCheckpointModels,
    PrefixCheckpointModels,
    SharedModels,
)
from captioners.profiles.hub.model_loader import Announce, ModelLoader, tell
from captioners.profiles.hub.roles import Source, choose

# what captions of pictures may need
PICTURES = ("captioner", "language-model", "image-ranker", "image-judge", "fluency-judge")


def promise(sources: dict[str, Source]) -> str:
    """What will be fetched and how long a caption takes, before anything is."""
    sizes = {role: 4 * sources[role].millions / 1000 for role in PICTURES if sources[role].millions}
    if not sizes:
        return expected_time(sources)
    by_role = ", ".join(f"{role} {size:.1f}" for role, size in sizes.items())
    return f"Up to {sum(sizes.values()):.1f} GB are fetched when first used ({by_role}). {expected_time(sources)}"


def expected_time(sources: dict[str, Source]) -> str:
    """How long a caption takes with these models, in a sentence that says how that is known."""
    mixed = sources["captioner"].blank.form == "mixture"  # it reads as many rows more as it has references
    methods = (("captioner", 1, "more than" if mixed else "about"), ("language-model", 2, "about"))
    known = [
        f"{words} {sources[role].seconds:g} s by method {method}"
        for role, method, words in methods
        if sources[role].seconds
    ]
    if not known:
        return "How long a caption then takes was not measured for these models."
    return (
        f"A guided caption then takes {' and '.join(known)}: an estimate from random weights of these sizes on one "
        "processor core, without its scores; more cores and a GPU are faster."
    )


def profile(
    device: str,
    models: str | None = None,
    checkpoints: tuple[str, ...] = (),
    announce: Announce = tell,
    name: str = "hub",
) -> Profile:
    """The methods' models and the judges have loaders of their own and share no model.

    Nothing is fetched before it is used.
    """
    sources = choose(models, checkpoints, name)
    judged = {role: source for role, source in sources.items() if role.endswith("-judge")}
    loader = ModelLoader({role: source for role, source in sources.items() if role not in judged}, device, announce)
    judges = ModelLoader(judged, device, announce)
    shared = SharedModels(loader, name)
    captioner = CaptionerFamilyModels(shared)
    models_by_method: dict[str, Any] = {
        "cfg": captioner,
        "classifier": Gpt2Models(shared),
        "mc-diffusion": (MaskCheckpointModels if loader.has("mc-diffusion") else FallbackModels)(
            shared, "mc-diffusion"
        ),
        "prefix-diffusion": (PrefixCheckpointModels if loader.has("prefix-diffusion") else FallbackModels)(
            shared, "prefix-diffusion"
        ),
    }

    def load() -> None:
        for models_of_method in models_by_method.values():
            try:
                models_of_method.load()
            except ProfileError as error:  # its method's card says so too; the others are read all the same
                announce(str(error))

    if name == "hub-small":
        announce(promise(sources))
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")  # TF32 for what stays in full precision
    slow = () if device.startswith("cuda") else ("classifier",)
    return Profile(
        name, captioner, HubJudges(judges), models_by_method, lambda: loader.status or judges.status, load, slow
    )

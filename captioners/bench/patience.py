"""The yardstick of a visitor's patience: all our captions of a picture against one of a full-size captioner."""

from __future__ import annotations

from captioners import registry
from captioners.bench.contest import Work, contest
from captioners.bench.inputs import captions, picture
from captioners.bench.peers import TOKENS, coca
from captioners.profiles.base import Profile


@contest(
    "page_vs_open_clip",
    f"every method's caption of an encoded picture against one greedy caption of {TOKENS} tokens by open_clip's "
    "coca_ViT-B-32",
    "picture",
    repeats=3,
)
def page(profile: Profile) -> tuple[Work, Work]:
    """Our methods one after the other, each with its own defaults, as the page runs them."""
    methods, one = [captions(spec.id, profile) for spec in registry.available()], [picture(0)]
    _, peer = coca(profile)
    return lambda: max(len(caption(one)) for caption in methods), peer

"""Serves the page: the options of `python app.py` and `caption-lab page`, and what happens when it starts.

A Space starts it without arguments: CAPTION_LAB_PROFILE, CAPTION_LAB_MODELS and CAPTION_LAB_CHECKPOINTS stand for them
there.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from threading import Thread

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
from captioners.ui.runtime.hosting import gpu_is_lent

if gpu_is_lent():
    import spaces  # noqa: F401  before torch, whose CUDA it stands in for

    os.environ.setdefault("CAPTION_LAB_CUDA_GRAPHS", "0")  # what a loan records is gone with it

from captioners.lab import Lab
from captioners.profiles.base import PROFILES, pick_device
from captioners.study.store import Store
from captioners.types import CaptionLabError
from captioners.ui.components import examples
from captioners.ui.page import build, launch_options
from captioners.ui.runtime.studio import Studio
from captioners.ui.study_page import STUDY_OPTIONS, build_study, links, prepare_study, user_store


def main(argv: list[str] | None = None) -> None:
    """Serve the page; weights are read in the background once it is up."""
    parser = argparse.ArgumentParser(description="Caption Lab: see what guidance does to a caption.")
    parser.add_argument(
        "--profile",
        default=space_setting("PROFILE", "embedded"),
        help=f"one of {', '.join(PROFILES)} (default: embedded)",
    )
    parser.add_argument(
        "--models",
        default=space_setting("MODELS"),
        metavar="FILE",
        help="hub profile: TOML or YAML, role = hub name or folder",
    )
    parser.add_argument("--checkpoint", action="append", metavar="PATH", help="what `train` wrote; may be repeated")
    parser.add_argument(
        "--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), help="0.0.0.0 lets other machines in"
    )
    parser.add_argument("--port", type=int, default=None, help="default: the first free one from 7860")
    parser.add_argument(
        "--device", default="auto", metavar="auto|cpu|cuda|mps", help="default: the best one that is there"
    )
    parser.add_argument("--study", metavar="FOLDER", help="serve a blind study of these pictures or sounds instead")
    parser.add_argument("--questions", metavar="FILE", help="a TOML file: what the study asks and compares")
    parser.add_argument("--store", metavar="PATH|URL", default=space_setting("STORE"), help="where votes are kept")
    args = parser.parse_args(argv)
    if args.questions and not args.study:
        parser.error("--questions belongs to a study: give --study FOLDER too.")
    try:
        device = pick_device(args.device)
        checkpoints = args.checkpoint or list(filter(None, (space_setting("CHECKPOINTS") or "").split(os.pathsep)))
        open_lab = partial(Lab, args.profile, device, args.models, checkpoints)
        if (
            args.profile not in PROFILES or args.models or checkpoints
        ):  # a mistake in them is told at once, not on a card
            open_lab()
        studio = Studio(open_lab)
        study = prepare_study(args.study, args.questions, args.store, args.profile, studio) if args.study else None
        store = study.store if study else Store(args.store) if args.store else user_store()
    except CaptionLabError as error:
        parser.error(str(error))
    page = build_study(study) if study else build(studio, args.profile, device, store)
    if studio.lent:  # what is on the GPU before the launch is there in every loan; nothing is computed without one
        studio.lab.load()
    options = launch_options() | (STUDY_OPTIONS if study else {})
    page.launch(server_name=args.host, server_port=args.port, prevent_thread_lock=True, **options)
    if study:
        print(links(study, page.local_url))
    elif not studio.lent:
        Thread(target=studio.warm_up, args=(examples.PICTURES[0],), daemon=True).start()
    page.block_thread()


def space_setting(name: str, default: str | None = None) -> str | None:
    """What a Space's settings say: an environment variable, unless it is empty."""
    return os.environ.get(f"CAPTION_LAB_{name}") or default

"""Serves the page: the options of `python app.py` and `caption-lab page`, and what happens when it starts."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from functools import partial
from threading import Thread

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
with suppress(ImportError):  # on a ZeroGPU Space it must come before torch
    import spaces  # noqa: F401

from captioners.lab import Lab
from captioners.profiles.base import PROFILES, ProfileError, pick_device
from captioners.ui import examples
from captioners.ui.page import build, launch_options
from captioners.ui.studio import Studio


def main(argv: list[str] | None = None) -> None:
    """Serve the page; weights are read in the background once it is up."""
    parser = argparse.ArgumentParser(description="Caption Lab: see what guidance does to a caption.")
    parser.add_argument("--profile", default="embedded", choices=PROFILES, help="where weights come from (default: embedded)")
    parser.add_argument("--models", metavar="FILE", help="hub profile: a TOML or YAML file, role = hub name or folder")
    parser.add_argument(
        "--checkpoint", action="append", default=[], metavar="PATH", help="hub profile: what `train` wrote; may be repeated"
    )
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"), help="0.0.0.0 lets other machines in")
    parser.add_argument("--port", type=int, default=None, help="default: the first free one from 7860")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda|mps", help="default: the best one that is there")
    args = parser.parse_args(argv)
    try:
        device = pick_device(args.device)
        open_lab = partial(Lab, args.profile, device, args.models, args.checkpoint)
        if args.models or args.checkpoint:  # a mistake in them is told at once, not on a card
            open_lab()
    except ProfileError as error:
        parser.error(str(error))
    studio = Studio(open_lab)
    page = build(studio, args.profile, device)
    page.launch(server_name=args.host, server_port=args.port, prevent_thread_lock=True, **launch_options())
    Thread(target=studio.warm_up, args=(examples.PICTURES[0],), daemon=True).start()
    page.block_thread()

"""The page of one study: nothing on it but the ballots, and the results for who has their secret link."""

from __future__ import annotations

import os
import sys
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from tqdm import tqdm

from captioners.study.design import read_design
from captioners.study.preparing import Preparation, read_folder
from captioners.study.store import Store
from captioners.types import CaptionLabError
from captioners.ui.runtime.studio import Studio
from captioners.ui.tabs.vote import VotingPanel

WAITING = 256  # raters in the queue before new ones are sent away
STUDY_OPTIONS: dict[str, Any] = {"mcp_server": False, "footer_links": []}  # raters need neither


def user_store() -> Store:
    """The store of who gave none: a file in the user's own data folder, or this process alone where there is no such
    folder.
    """
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "caption-lab"
    try:
        data.mkdir(parents=True, exist_ok=True)
        return Store(str(data / "votes.sqlite"))
    except (OSError, CaptionLabError) as error:
        print(
            f"Votes are kept until the program ends ({error}): give --store FILE to keep them longer.", file=sys.stderr
        )
        return Store()


def prepare_study(folder: str, questions: str | None, where: str | None, profile: str, studio: Studio) -> Preparation:
    """The study of a folder with all of its captions made, which is told as it goes on.

    Without a store, the votes lie in the folder.
    """
    inputs = read_folder(folder)
    design = read_design(questions, Path(folder).resolve().name)
    store = Store(where or str(Path(folder) / "votes.sqlite"))
    preparation = Preparation(store, design, inputs, profile, studio)
    with tqdm(total=len(inputs), initial=preparation.done, desc="captions", delay=2, leave=False) as bar:
        while preparation.prepare_next():
            bar.update()
    if not store.count_pairs(preparation.study.id):
        raise CaptionLabError(
            "No two captions of this study differ: compare other methods or values, or give more files."
        )
    return preparation


def build_study(preparation: Preparation) -> gr.Blocks:
    """The page of one study."""
    study = preparation.study
    with gr.Blocks(title=study.title, analytics_enabled=False) as page:
        gr.HTML(f'<header class="cl-top"><h1>{escape(study.title)}</h1></header>', elem_classes="cl-narrow")
        VotingPanel(preparation, page, reveals=False)
    return page.queue(max_size=WAITING)


def links(preparation: Preparation, address: str) -> str:
    """Where raters go, and where whoever runs the study looks."""
    study, root = preparation.study, address.rstrip("/")
    return (
        f"Raters:  {root}/?study={study.id}\nResults: {root}/?study={study.id}&results={study.secret}\n"
        "The second link is a secret: it opens the results."
    )

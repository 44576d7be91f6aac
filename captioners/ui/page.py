"""The whole page: header, tabs, the documented endpoints, and how it is served."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from captioners import registry
from captioners.media import MAX_BYTES
from captioners.resources import ASSETS, EXAMPLES
from captioners.study.store import Store
from captioners.ui.api import add_endpoints
from captioners.ui.runtime.studio import Studio
from captioners.ui.tabs.about import about_html
from captioners.ui.tabs.batch import Batch
from captioners.ui.tabs.compare import Compare
from captioners.ui.tabs.sweep import Sweep
from captioners.ui.tabs.vote import VotingPanel, examples_study

STATUS_SECONDS = 2.0  # seconds between two looks at what is being loaded
MAX_QUEUE = 64  # visitors in the queue before new ones are sent away
ABOUT = {
    "embedded": "small models trained on twenty thousand everyday photographs and some sixty kinds of sound",
    "hub": "pretrained models from the Hugging Face Hub; the first caption waits until they are there",
    "hub-small": (
        "pretrained models from the Hugging Face Hub that a laptop can hold; "
        "the first caption waits until they are there"
    ),
}


def build(studio: Studio, profile: str = "embedded", device: str = "auto", store: Store | None = None) -> gr.Blocks:
    """The page for what the registry has. Votes go to the store; without one they end with the process."""
    specs = registry.available()
    voted = examples_study(studio, store or Store(), profile)
    with gr.Blocks(title="Caption Lab", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(
            '<header class="cl-top"><h1>Caption Lab</h1><p>see what guidance does to a caption</p>'
            f"<p><strong>{profile}</strong> · {device} · {ABOUT[profile]} · "
            '<button type="button" data-tour="start">tour</button></p></header>'
        )
        if profile != "embedded":  # its models take minutes to arrive
            loading = gr.HTML(elem_classes="cl-loading")
            gr.Timer(STATUS_SECONDS).tick(
                lambda: loading_html(studio.status()),
                None,
                loading,
                api_visibility="private",
                show_progress="hidden",
                concurrency_limit=None,
            )
        with gr.Tabs(elem_classes="cl-tabs"):
            with gr.Tab("Compare"):
                compare = Compare(studio, specs, page)
            with gr.Tab("Sweep") as sweeping:
                Sweep(studio, specs, compare.source, sweeping if profile == "embedded" else None)
            with gr.Tab("Batch") as batching:
                Batch(studio, specs, batching if profile == "embedded" else None)
            with gr.Tab("Blind vote") as voting:
                VotingPanel(voted, page, reveals=True, tab=voting)
            with gr.Tab("About"):
                gr.HTML(about_html(specs, profile))
        add_endpoints(studio, specs)
    return page.queue(max_size=MAX_QUEUE, default_concurrency_limit=4)


def loading_html(status: str) -> str:
    """What is being loaded, for those who wait."""
    return f'<p role="status">{escape(status)} …</p>' if status else ""


def launch_options() -> dict[str, Any]:
    """What Gradio takes at launch rather than in Blocks."""
    return {
        "theme": _theme(),
        "css_paths": ASSETS / "app.css",
        "js": _scripts("app.js", "tour.js"),
        "max_file_size": MAX_BYTES,
        "mcp_server": True,
        "allowed_paths": [str(EXAMPLES)],
        "footer_links": ["api", "settings"],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "show_error": True,
    }


def _scripts(*names: str) -> str:
    """Several functions as the one that Gradio runs when the page opens."""
    return "() => {" + "".join(f"({(ASSETS / name).read_text(encoding='utf-8').strip()})();" for name in names) + "}"


def _theme() -> gr.themes.Base:
    """System fonts, so that nothing is fetched; quiet text dark enough to be read."""
    theme = gr.themes.Default(
        primary_hue="violet",
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
    return theme.set(
        body_text_color_subdued="*neutral_600",
        block_info_text_color="*neutral_600",
        block_title_text_color="*neutral_700",
        block_label_text_color="*neutral_700",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
    )

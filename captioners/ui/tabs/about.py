"""The About tab: what the methods are, what the numbers mean, what the models know, and whose work all this stands
on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape

from captioners import registry
from captioners.types import Spec
from captioners.ui.rendering.markup import table

READING = """<h2>How to read the page</h2>
<p>Every card shows one method twice: guided, and beneath it the same method with guidance off. A word is orange when the input made it more
likely and purple when it made it less likely. CLIPScore says how well a caption fits, perplexity how surprising it reads. Guidance buys
the first with the second: turn it up until captions break. The judges that give these numbers take no part in any method.</p>"""

MODELS = {
    "embedded": """<h2>What the models know</h2>
<p>The embedded models are small, a few million parameters each, and have seen the everyday world in small: twenty thousand photographs of
people, animals, streets, rooms, food and sports, some sixty kinds of everyday sound, voices and music. What is common in such photographs is
mostly named; what is rare, drawings, text, numbers and names are guessed at. All methods share encoder, vocabulary and training data, so that
differences between cards are differences between the ways of guiding.</p>""",
    "hub": """<h2>What the models know</h2>
<p>The methods run on pretrained models: CoCa, BLIP or another captioner for the first, GPT-2 with CLIP or CLAP for the second. The two
diffusion methods have no published weights: they use checkpoints that were trained for them where given, and the small embedded models
elsewhere; a card says which. Every score names its encoder, and no encoder that scores takes part in a method.</p>""",
}

DATA = (
    ("Flickr8k", "photographs and captions", "Hodosh et al. 2013", "research use"),
    ("Multi30k", "captions", "Elliott et al. 2016", "research and education"),
    ("COCO", "photographs, captions and boxes", "Lin et al. 2014", "CC BY 4.0, photographs under their Flickr terms"),
    ("AudioCaps", "captions", "Kim et al. 2019", "MIT (captions)"),
    ("Clotho", "captions", "Drossos et al. 2020", "research use"),
    ("ESC-50", "sounds", "Piczak 2015", "CC BY-NC 3.0, a part CC BY 3.0"),
    ("UrbanSound8K", "sounds", "Salamon et al. 2014", "CC BY-NC 3.0"),
    ("GTZAN", "music", "Tzanetakis and Cook 2002", "research use"),
    ("RAVDESS", "voices", "Livingstone and Russo 2018", "CC BY-NC-SA 4.0"),
    ("Audibility set", "sentences", "arXiv 2309.03884", "research use"),
)

CITATION = """@software{caption_lab,
  title = {Caption Lab: see what guidance does to a caption},
  note  = {Please cite the papers of the methods as well}
}"""


def about_html(specs: Sequence[Spec], profile: str) -> str:
    """The text of the whole tab."""
    models = MODELS["embedded" if profile == "embedded" else "hub"]
    cited = [CITATION, *(s.explanation.citation for s in specs if s.explanation)]
    return (
        f'<div class="cl-about">{READING}<h2>The methods</h2>{"".join(map(_method, specs))}{models}'
        f"{_data() if profile == 'embedded' else ''}<h2>Citation</h2><pre>{escape(chr(10).join(cited))}</pre></div>"
    )


def _method(spec: Spec) -> str:
    """What there is to say of a method: its spec, with its explanation or else the words at the top of its file."""
    if explanation := spec.explanation:
        words = f"<p>{escape(explanation.works)}</p><p><strong>Where it fails.</strong> {escape(explanation.fails)}</p>"
    else:
        module = sys.modules[registry.find(spec.id).__module__]
        words = "".join(
            f"<p>{escape(' '.join(part.split()))}</p>" for part in (module.__doc__ or "").strip().split("\n\n")
        )
    formula = f"<p><code>{escape(spec.formula)}</code></p>" if spec.formula else ""
    kinds = " and ".join({"image": "pictures", "audio": "sound"}[m] for m in spec.modalities)
    return (
        f"<h3>{escape(spec.title)}</h3><p><em>{escape(spec.idea)}</em> For {kinds}. "
        f'<a href="{escape(spec.paper)}" target="_blank" rel="noopener">paper</a></p>{formula}{words}'
    )


def _data() -> str:
    rows = [[escape(cell) for cell in row] for row in DATA]
    return (
        f"<h2>Data and licences</h2>{table('What the embedded models were trained on', ['data', 'used', 'by', 'licence'], rows)}"
        + (
            "<p>The examples on this page are in none of these; their sources and licences are in "
            "<code>assets/examples/CREDITS.md</code>.</p>"
        )
    )

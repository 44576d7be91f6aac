"""What method 2 declares: its controls, how their values are read, and the text that explains it."""

from __future__ import annotations

from captioners.controls import GUIDANCE_SCALE, MAX_TOKENS, NUM_CANDIDATES, SEED, choice, number, text
from captioners.decoding import SAMPLING_TEMPERATURE
from captioners.types import Explanation, Modality, Settings

GUIDES: dict[str, Modality] = {"audibility": "audio", "visibility": "image"}  # guide → the modality that it is made for

CONTROLS = (
    GUIDANCE_SCALE.but(low=1, help="How far the context is moved at each gradient step, 0.3·(γ − 1); 1 is off."),
    NUM_CANDIDATES.but(
        help=(
            "How many captions are finished and ranked; beside a greedy one they are drawn at temperature "
            f"{SAMPLING_TEMPERATURE}."
        )
    ),
    number(
        "classifier_weight",
        "Classifier weight λ1",
        "How much being audible (or visible) counts; 0 is off.",
        0.6,
        0,
        2,
        0.1,
    ),
    choice(
        "guide",
        "Guide",
        "Which classifier guides: auto asks whether a sound can be heard and a picture be seen; none is λ1 = 0.",
        ("auto", *GUIDES, "none"),
    ),
    number("fluency_weight", "Fluency weight λ0", "How much staying near the language model counts.", 0.2, 0, 2, 0.1),
    choice(
        "fluency",
        "Fluency term",
        "ce is the cross-entropy of the moved distribution under the untouched one; kl, as in ZeroCap, the divergence "
        "of the moved one from the untouched one.",
        ("ce", "kl"),
    ),
    number(
        "relevance_weight",
        "Relevance weight λ2",
        "How much matching the input counts; 0 is off, 1 is ZeroCap's.",
        0.6,
        0,
        4,
        0.1,
    ),
    choice(
        "target",
        "Relevance target",
        "bayes weighs each token's similarity to the input with p(token); "
        "zerocap takes the softmax of the similarities alone.",
        ("bayes", "zerocap"),
    ),
    number("num_steps", "Gradient steps", "How often the context is moved before each token.", 10, 1, 20, 1),
    number(
        "top_k",
        "Tokens considered",
        "How many of the likeliest next tokens are considered; the paper has 512.",
        512,
        8,
        1024,
        8,
    ),
    choice(
        "route",
        "Route",
        "Fast reads the promising ones of the tokens considered, once; "
        "faithful reads all of them at every step, as the paper does.",
        ("fast", "faithful"),
    ),
    number(
        "no_repeat",
        "No repeat",
        "Forbids a guided caption to say a run of this many tokens twice, and punctuation behind punctuation; "
        "0, as in the papers, is off.",
        2,
        0,
        4,
        1,
    ),
    choice(
        "start",
        "Start",
        "neutral tells the language model nothing of the input, so that the classifier has something to do; modality "
        "tells it that a picture's, or a sound's, caption is wanted, which names more and guides less.",
        ("neutral", "modality"),
    ),
    text(
        "prompt",
        "Prompt",
        "What every caption begins with; with a | in it, "
        "what stands before is for pictures and what stands behind for sounds.",
    ),
    MAX_TOKENS.but(default=20),
    SEED,
)

EXPLANATION = Explanation(
    "A language model that has never seen or heard anything writes the caption. Before each word its memory of the "
    "words so far is moved by a few steps of gradient descent. One term of the loss asks a classifier whether what is "
    "said can be heard, or seen; one asks a matcher whether it fits the input; one keeps the words likely. The word "
    "is then taken from the moved model. No part but the matcher was trained on inputs with their captions. The "
    "unguided caption is made in the same way without the classifier (λ1 = 0), so that the difference is the "
    "classifier's; at γ = 1 nothing is moved and the language model speaks alone.",
    "It knows the input only by the matcher's word on half-finished sentences: an early wrong word is never taken "
    "back, and the sentence is talked round to it. It is the slowest of the four.",
    """@article{shaulov2025classifier,
  title   = {Classifier-Guided Captioning Across Modalities},
  author  = {Shaulov, Ariel and Shaharabany, Tal and Shaar, Eitan and Chechik, Gal and Wolf, Lior},
  journal = {arXiv:2501.03183},
  year    = {2025}
}""",
)


def classifier_weight(settings: Settings) -> float:
    """λ1, which is 0 where no classifier guides."""
    return 0.0 if settings["guide"] == "none" else float(settings["classifier_weight"])


def asked_modality(settings: Settings, kind: Modality) -> Modality:
    """The modality whose question is asked of captions of a `kind`: its own, unless another guide was chosen."""
    return GUIDES.get(settings["guide"], kind)


def prompt_for(prompt: str, kind: Modality) -> str:
    """The part of a prompt that captions of this modality begin with."""
    pictures, bar, sounds = prompt.partition("|")
    return (sounds if bar and kind == "audio" else pictures).strip()

"""The judge of audibility has read no sentence that a guide has, however the same sentence is repeated in the data."""

import pytest

from captioners.text import clean
from captioners.training.classifier import captions_too, sentences

DATA = """
pictures = []
sounds = []
[[texts]]
name = "photos"
files = ["photos.txt"]
of = "image"
layout = "runs"
[[texts]]
name = "more photos"
files = ["more_photos.txt"]
of = "image"
[[texts]]
name = "clips"
files = ["clips.txt"]
of = "audio"
[sentences]
audible = "audible.txt"
not_audible = "silent.txt"
"""


def numbered(words: str, count: int) -> list[str]:
    return [f"{words} {i}" for i in range(count)]


@pytest.fixture
def made_up(job):
    """Sentences that stand twice: in a neighbouring line, in another spelling, in another set of captions, and both as
    a caption and in the published set.
    """
    files = {
        "photos.txt": [*numbered("a dog in the grass", 40), *["a man"] * 20, "seen everywhere"],
        "more_photos.txt": [*numbered("a street", 20), *numbered("a dog in the grass", 40), "a man", "a man"],
        "clips.txt": [*numbered("a horn sounds", 30), "rain falls", "rain falls.", "heard everywhere", "wind"],
        "audible.txt": [
            *numbered("a bell rings", 30),
            "a bird sings",
            "a bird sings.",
            "rain falls",
            "heard everywhere",
        ],
        "silent.txt": [*numbered("a thought", 30), "a wish", "a wish", "a man", "seen everywhere"],
    }
    job.data.mkdir()
    (job.data / "data.toml").write_text(DATA)
    for name, texts in files.items():
        (job.data / name).write_text("\n".join(texts) + "\n")
    return job


@pytest.mark.parametrize("guide", ["audibility", "visibility"])
def test_a_guide_and_the_judge_share_no_sentence(made_up, guide):
    learned = {text for text, _ in sentences(guide, made_up) + captions_too(guide, made_up, 6000)}
    judged = {text for text, _ in sentences("audibility-judge", made_up)}
    assert len(learned) > 30
    assert len(judged) > 30
    assert not learned & judged
    everything = {clean(t) for file in made_up.data.glob("*.txt") for t in file.read_text().splitlines()}
    assert learned | judged <= everything


def test_what_stands_twice_is_the_judges(made_up):
    judged = {text for text, _ in sentences("audibility-judge", made_up)}
    assert {clean(t) for t in ("a man", "a bird sings", "a wish", "rain falls")} <= judged

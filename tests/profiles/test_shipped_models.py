"""The weights that are shipped know what they should: small facts about our own examples, which nothing was trained
on.
"""

import json
from pathlib import Path

import pytest
import torch

from captioners import guidance
from captioners.media import load_media
from captioners.profiles.store import part_hash
from captioners.resources import ASSETS, WEIGHTS
from captioners.sound_classes import MUSIC, SOUND_CLASSES
from captioners.training import PARTS

PICTURES = sorted((ASSETS / "examples").glob("*.jpg"))
SOUNDS = sorted((ASSETS / "examples").glob("*.ogg"))
METRICS = {
    path.name.removesuffix(".metrics.json"): json.loads(path.read_text()) for path in WEIGHTS.glob("*.metrics.json")
}


def example(name: str):
    return load_media(Path(ASSETS / "examples" / name))


@pytest.mark.parametrize("role", ["ranker", "judge"])
@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("dog.jpg", "a dog stands on the grass", "a man plays a guitar on a stage"),
        ("beach.jpg", "a sandy beach and the ocean", "a group of people sit in a restaurant"),
        ("rooster.ogg", "a rooster crows", "water is poured into a glass"),
        ("baby.ogg", "a baby is crying", "an engine is running"),
    ],
)
def test_a_matcher_prefers_the_right_caption(embedded, role, name, right, wrong):
    media = example(name)
    matcher = embedded.models.ranker(media.kind) if role == "ranker" else embedded.judges.matcher(media.kind)
    scores = matcher.embed_text([right, wrong]) @ matcher.embed_media([media])[0]
    assert scores[0] > scores[1] + 0.1


def test_a_guitar_is_called_music(embedded):
    judge = embedded.judges.matcher("audio")
    prompts = judge.embed_text([s.captions[0] for s in SOUND_CLASSES.values()])
    assert list(SOUND_CLASSES)[int((prompts @ judge.embed_media([example("guitar.ogg")])[0]).argmax())] in MUSIC


@pytest.mark.parametrize("part", ["image-ranker", "image-judge"])
def test_picture_matchers_reached_their_recall(part):
    assert METRICS[part]["recall@1"] >= 0.15
    assert METRICS[part]["recall@10"] >= 0.52


def test_the_sound_judge_reached_its_accuracy():
    assert METRICS["audio-judge"]["accuracy_esc50"] >= 0.8


@pytest.mark.parametrize("part", PARTS)
def test_what_ships_is_what_its_training_wrote(part):
    """The file's hash, and which command, data and code made it."""
    record = METRICS[part]
    assert record["hash"] == part_hash(part, WEIGHTS)
    assert record["command"].startswith(f"python -m captioners train {part} ")
    assert {"seed", "minutes", "data", "commit"} <= set(record)
    assert len(record["commit"]) == 40  # of the code as it was committed, without changes
    # the parts that it read are those that ship (records of before do not tell)
    assert all(part_hash(read, WEIGHTS) == digest for read, digest in record.get("reads", {}).items())


def test_a_sentence_is_more_fluent_than_its_words_in_disorder(embedded):
    judge = embedded.judges.fluency()
    good, bad = judge.log_likelihood(["a black dog runs through the grass", "grass dog the a runs black through"])
    assert good > bad + 10


def test_sentences_about_sound_are_audible_and_others_are_not(embedded):
    said = embedded.judges.audibility().probability(
        ["a dog barks loudly", "rain falls on a roof", "a man in a red shirt", "two people on a bench"]
    )
    assert (said > 0.5).tolist() == [True, True, False, False]


@pytest.mark.parametrize("path", PICTURES + SOUNDS, ids=lambda p: p.name)
def test_an_unguided_caption_ends_by_itself_and_does_not_loop(cfg, path):
    result = cfg.caption(load_media(path), cfg.spec.settings(guidance_scale=1))
    words = result.caption.split()
    assert result.trace[-1].token == "<eos>"
    assert all(words[i : i + 3] != words[i + 3 : i + 6] for i in range(len(words) - 5))


def test_the_unconditional_branch_is_the_marginal_of_the_conditional_one(cfg):
    """p(first token) against p(first token | picture) averaged over our pictures; on the development split KL is in
    the metrics.
    """
    method_models = cfg.models
    decoder = method_models.caption_decoder()
    grids = torch.stack([f.grid for f in method_models.encode([load_media(p) for p in PICTURES])])
    condition = decoder.condition({"image": grids}, torch.arange(len(grids)))
    ids = torch.full((len(grids), 1), method_models.start_token("image"))
    average = decoder(ids, condition)[0][:, 0].softmax(-1).mean(0).log()
    alone = decoder(ids[:1], condition[torch.tensor([0])].removed())[0][0, 0].log_softmax(-1)
    assert guidance.kl(average, alone) < 0.5
    assert METRICS["cfg"]["first_token_kl"] < 0.05

"""The training loop on a toy problem, the corpus readers on a made-up folder, and captions for clips that have a
class.
"""

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from captioners import training
from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.language_model import CausalLM, CausalLMConfig
from captioners.profiles.store import save_part
from captioners.sound_classes import MUSIC, SOUND_CLASSES, VOICES
from captioners.training import PARTS, Job, Recipe, captioner, corpus, loop, mask_denoiser, train_all
from captioners.training.captioner import warm_start
from captioners.training.features import Maps, random_views, view_pixels
from captioners.training.loop import _warmup_cosine, fit
from captioners.training.sound_captions import FOUND_BY_HAND_ONLY, LONGEST, MOST, captions_by_class, joined
from captioners.types import CaptionLabError

EPOCHS, STEPS = 4, 12
RECIPE = Recipe(epochs=EPOCHS, batch=32, lr=3e-2, ema=0.9)


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(tmp_path / "data", tmp_path / "out", tmp_path / "cache", device="cpu", quiet=True)


# ------------------------------------------------------------------------------------------------------- the loop


def network(seed: int) -> nn.Module:
    """With everything that has a state of its own: weights, batch statistics, dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 1))


def examples(seed: int, count: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, :1] - 2 * x[:, 1:2]).tanh()


def batches(epoch: int):
    return (examples(1000 * epoch + step) for step in range(STEPS))


def squared_error(model: nn.Module, batch) -> torch.Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def on_held_out(model: nn.Module) -> dict[str, float]:
    return {"error": squared_error(model, examples(-1)).item()}


def run(job: Job, seed: int = 0, loss=squared_error, evaluate=on_held_out, better="-error", **more):
    return fit(job, "toy", network(seed), batches, STEPS, loss, evaluate, RECIPE, better, **more)


def test_training_lowers_the_loss(job):
    untrained = on_held_out(network(0).eval())["error"]
    model, report = run(job)
    assert [h["epoch"] for h in report["history"]] == [1, 2, 3, 4]
    assert report["history"][-1]["loss"] < 0.6 * report["history"][0]["loss"]
    assert report["error"] == pytest.approx(on_held_out(model)["error"]) == min(h["error"] for h in report["history"])
    assert report["error"] < 0.5 * untrained
    assert report["parameters"] == sum(p.numel() for p in network(0).parameters())
    assert not model.training


@pytest.mark.parametrize("killed_at", [1 * STEPS, 2 * STEPS + 5], ids=["between epochs", "within an epoch"])
def test_a_killed_run_ends_where_an_uninterrupted_one_does(job, tmp_path, killed_at):
    def last(model):  # the more batches have been seen, the better: the weights of the last epoch are compared
        return {"seen": float(model[1].num_batches_tracked), **on_held_out(model)}

    straight, expected = run(job, evaluate=last, better="seen")
    assert expected["best_epoch"] == EPOCHS

    class Killed(Exception):
        pass

    done = 0

    def until_killed(model, batch):
        nonlocal done
        done += 1
        if done > killed_at:
            raise Killed
        return squared_error(model, batch)

    again = Job(job.data, job.out, tmp_path / "other cache", device="cpu", quiet=True)
    with pytest.raises(Killed):
        run(again, loss=until_killed, evaluate=last, better="seen")
    torch.manual_seed(99)  # another process would not have this one's randomness
    resumed, report = run(again, seed=7, evaluate=last, better="seen")
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    same = ("epoch", "loss", "error")
    assert [[h[k] for k in same] for h in report["history"]] == [[h[k] for k in same] for h in expected["history"]]


def test_a_slower_part_has_a_learning_rate_of_its_own(job):
    model = network(0)
    before = [layer.weight.detach().clone() for layer in (model[0], model[-1])]
    fitted, _ = fit(
        job, "toy", model, batches, STEPS, squared_error, on_held_out, RECIPE, "-error", slower=(model[0], 0.0)
    )
    torch.testing.assert_close(fitted[0].weight, before[0], rtol=0, atol=0)
    assert not torch.allclose(fitted[-1].weight, before[1])


def test_a_finished_run_is_not_run_again(job):
    first, _ = run(job)

    def never(model, batch):
        raise AssertionError("trained again")

    second, report = run(job, seed=3, loss=never)
    assert len(report["history"]) == EPOCHS
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(("better", "values", "best"), [("score", [1, 3, 2, 2.9], 2), ("-score", [5, 4, 1, 2], 3)])
def test_the_weights_of_the_best_epoch_are_returned(job, better, values, best):
    seen, saved = [], []

    def scripted(model):
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"score": float(values[len(seen) - 1])}

    model, report = run(job, evaluate=scripted, better=better, save=lambda model: saved.append(len(seen)))
    assert (report["best_epoch"], report["score"]) == (best, values[best - 1])
    assert all(torch.equal(value, seen[best - 1][name]) for name, value in model.state_dict().items())
    assert any(not torch.equal(value, seen[-1][name]) for name, value in model.state_dict().items())
    assert saved == list(range(1, best + 1))


def test_a_loss_that_is_not_a_number_stops_the_run(job):
    with pytest.raises(FloatingPointError, match="toy: the loss is nan in epoch 1"):
        run(job, loss=lambda model, batch: squared_error(model, batch) * math.nan)


def test_the_learning_rate_rises_and_falls():
    rates = [_warmup_cosine(step, 100) for step in range(101)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a >= b for a, b in itertools.pairwise(rates[3:]))
    assert rates[-1] == pytest.approx(0.02)


def test_a_training_can_go_on_from_given_weights(job, tmp_path):
    save_part(tmp_path / "old", "toy", network(5), {})
    recipe = replace(RECIPE, epochs=1, lr=1e-9, ema=0.0)
    model, _ = fit(
        replace(job, start=tmp_path / "old"),
        "toy",
        network(0),
        batches,
        STEPS,
        squared_error,
        on_held_out,
        recipe,
        "-error",
    )
    for name, value in network(5).state_dict().items():
        if "running" not in name and "tracked" not in name:
            assert torch.allclose(model.state_dict()[name], value, atol=1e-3), name


def test_a_finished_run_still_writes_its_weights(job):
    run(job)
    saved = []
    run(job, save=saved.append)
    assert saved


# ------------------------------------------------------------------------------------------------------ the corpora


DATA = """
[[pictures]]
name = "street"

[[pictures]]
name = "squares"
squeezed = true

[[texts]]
name = "blocked"
files = ["text/blocked.txt"]
of = "image"
layout = "blocks"

[[texts]]
name = "running"
files = ["text/running.txt"]
dev = ["text/running_dev.txt"]
of = "audio"
layout = "runs"

[[texts]]
name = "single"
files = ["text/single.txt"]
of = "audio"

[[sounds]]
name = "folds"
table = "table.csv"
dev_fold = 4

[[sounds]]
name = "labelled"
table = "labels.jsonl"
recording = '^(?P<recording>\\w+)-'
classes = { "dog bark" = "dog" }

[sentences]
audible = "audible.txt"
not_audible = "silent.txt"
"""


@pytest.fixture
def data(job):
    """A tiny folder with a list of its own: two picture sets, two sound sets, three text corpora."""
    for folder in ("street", "squares", "folds", "labelled", "text"):
        (job.data / folder).mkdir(parents=True)
    (job.data / "data.toml").write_text(DATA)
    splits = ["train", "train", "train", "dev"]
    rows = [
        {"image": f"{i}.jpg", "split": split, "captions": [f"picture {i} {k}" for k in "abcde"]}
        for i, split in enumerate(splits)
    ]
    (job.data / "street/captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    square = {
        "image": "s.avif",
        "split": "train",
        "captions": ["a cat"],
        "objects": ["cat", "chair"],
        "size": [640, 480],
    }
    (job.data / "squares/captions.jsonl").write_text(json.dumps(square))
    (job.data / "folds/table.csv").write_text(
        "filename,fold,category,esc10\n1-a.ogg,1,dog,True\n4-b.ogg,4,rain,False\n"
    )
    clips = [{"audio": f"r{i % 40}-{i}.ogg", "label": "dog bark" if i % 2 else "gun shot"} for i in range(80)]
    (job.data / "labelled/labels.jsonl").write_text("\n".join(map(json.dumps, clips)))
    (job.data / "text/blocked.txt").write_text("\n".join(f"multi {i} {k}" for k in "abcde" for i in range(2)) + "\n\n")
    (job.data / "text/running.txt").write_text("\n".join(f"run {i // 5} {i % 5}" for i in range(20)))
    (job.data / "text/running_dev.txt").write_text("held out\n")
    (job.data / "text/single.txt").write_text("  a sound  \n\nanother sound\n")
    (job.data / "audible.txt").write_text("to be heard\n")
    (job.data / "silent.txt").write_text("not to be heard\n")
    return job.data


def test_pictures_of_all_sets_are_read_in_order(data):
    assert [p.path.name for p in corpus.pictures(data)] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "s.avif"]
    (dev,) = corpus.pictures(data, "dev")
    assert (dev.path, dev.captions) == (data / "street/images/3.jpg", tuple(f"picture 3 {k}" for k in "abcde"))
    (square,) = corpus.pictures(data, source="squares")
    assert (square.objects, square.size, square.squeezed) == (("cat", "chair"), (640, 480), True)


def test_a_fold_is_held_out_where_there_are_folds(data):
    clips = [(c.path, c.category, c.held_out) for c in corpus.clips(data) if c.source == "folds"]
    assert clips == [(data / "folds/audio/1-a.ogg", "dog", False), (data / "folds/audio/4-b.ogg", "rain", True)]


def test_elsewhere_whole_recordings_are_held_out(data):
    clips = [c for c in corpus.clips(data) if c.source == "labelled"]
    assert {c.category for c in clips} == {"dog", "gun_shot"}
    sides: dict[str, set[bool]] = {}
    for clip in clips:
        sides.setdefault(clip.path.name.split("-")[0], set()).add(clip.held_out)
    assert all(len(side) == 1 for side in sides.values())
    assert 0.05 < sum(c.held_out for c in clips) / len(clips) < 0.4


def test_text_is_read_without_empty_lines(data):
    assert corpus.texts(data)["single"].captions == ["a sound", "another sound"]
    assert corpus.texts(data, "dev")["running"].captions == ["held out"]


def test_the_captions_of_a_picture_stay_together(data):
    assert corpus.texts(data)["blocked"].groups == tuple(tuple(f"multi {i} {k}" for k in "abcde") for i in range(2))


@pytest.mark.parametrize("name", ["blocked", "running", "single"])
def test_the_halves_share_no_picture_and_leave_nothing_out(data, name):
    text = corpus.texts(data)[name]
    halves = [text.half(which) for which in (0, 1)]
    assert sorted(halves[0] + halves[1]) == sorted(text.captions)
    if name != "single":
        about = [{caption.split()[1] for caption in half} for half in halves]
        assert not about[0] & about[1]
        assert all(about)


def test_the_tokenizer_reads_everything_but_the_development_split(data):
    texts = corpus.everything(data)
    assert {"picture 2 e", "a cat", "multi 1 a", "run 3 4", "another sound", "to be heard", "not to be heard"} <= set(
        texts
    )
    assert not any(text.startswith("picture 3") or text == "held out" for text in texts)


def test_the_own_list_names_every_set_that_the_counts_count():
    own = corpus.manifest(Path("nowhere"))
    assert {entry["of"] for entry in own["texts"]} == {"image", "audio"}
    assert all(set(entry) >= {"name", "table"} for entry in own["sounds"])


@pytest.mark.parametrize(
    ("squeezed", "size", "shapes"), [(False, None, {(224, 320)}), (True, (480, 640), {(288, 224)}), (True, None, None)]
)
def test_a_squeezed_picture_is_stretched_back(tmp_path, squeezed, size, shapes):
    Image.new("RGB", (300, 210), "red").save(tmp_path / "p.png")
    picture = corpus.Picture(tmp_path / "p.png", "train", ("a",), "set", size=size, squeezed=squeezed)
    seen = {tuple(view_pixels(picture, 0, seed, 224).shape[1:]) for seed in range(12)}
    if shapes:
        assert seen == shapes
    else:  # its shape is not known: one between 3:4 and 4:3
        assert len(seen) > 1 and all(3 / 4 - 0.1 < h / w < 4 / 3 + 0.1 for h, w in seen)
    assert view_pixels(picture, 1, 0, 224).shape[0] == 3


def test_a_mirrored_view_is_the_grid_from_right_to_left():
    features = torch.arange(9.0).view(1, 1, 9, 1)
    seen = {tuple(random_views(features, [0], random.Random(seed)).flatten().tolist()) for seed in range(20)}
    assert seen == {tuple(range(9)), (2, 1, 0, 5, 4, 3, 8, 7, 6)}


def test_maps_of_many_shapes_come_back_from_one_file():
    shapes = np.array([(2, 3, 4), (2, 4, 3), (2, 3, 4)])
    values = np.arange(shapes.prod(1).sum(), dtype=np.float16)
    maps = Maps(values, shapes)
    assert maps.batches(8) == [[0, 2], [1]]
    both = maps.read([0, 2])
    assert both.shape == (2, 2, 3, 4) and both[1, 0, 0, 0] == 48 and both[0, 0, 0, 1] == 1


# ------------------------------------------------------------------------------------------------- parts and the chain


def test_every_part_has_a_module_that_trains_it():
    from importlib import import_module

    assert all(callable(import_module(f"captioners.training.{part.module}").train) for part in PARTS.values())


def test_every_part_comes_after_those_that_it_needs():
    order = list(PARTS)
    assert all(order.index(need) < order.index(name) for name, part in PARTS.items() for need in part.needs)


@pytest.fixture
def recorded(monkeypatch, job) -> list[str]:
    """Trainings that take no time; the list of those that ran."""
    ran: list[str] = []

    def train_part(name: str, job: Job) -> dict:
        ran.append(name)
        job.out.mkdir(parents=True, exist_ok=True)
        (job.out / f"{name}.metrics.json").write_text(json.dumps({"minutes": 1.0, "score": 0.5, "history": []}))
        return {"score": 0.5}

    monkeypatch.setattr(training, "train", train_part)
    return ran


def test_all_parts_are_trained_in_order_and_told_before_and_after(job, recorded):
    lines: list[str] = []
    train_all(job, lines.append)
    assert recorded == list(PARTS)
    plan = lines[1 : 1 + len(PARTS)]
    assert [line.split()[0] for line in plan] == list(PARTS)
    assert all(f"{PARTS[line.split()[0]].minutes:g}" in line for line in plan)
    assert lines[-1].split()[:2] == [list(PARTS)[-1], "1.0"] and "score 0.5" in lines[-1]


def test_what_is_done_is_not_done_again(job, recorded):
    train_all(job, lambda line: None)
    (job.out / "cfg.metrics.json").unlink()
    recorded.clear()
    lines: list[str] = []
    train_all(job, lines.append)
    assert recorded == ["cfg"]
    assert sum(" done " in line for line in lines) == len(PARTS) - 1


def test_the_captioner_starts_as_the_language_model():
    torch.manual_seed(0)
    lm = CausalLM(CausalLMConfig(vocab=30, dim=16, layers=3)).eval()
    nn.init.normal_(lm.positions)
    decoder = CaptionDecoder(CaptionerConfig(vocab=30, dim=16, text_layers=1, cross_layers=2, media_dim=8)).eval()
    warm_start(decoder, lm)
    ids = torch.randint(30, (2, 7))
    condition = decoder.condition({"audio": torch.randn(2, 20, 8)}, torch.arange(2))
    torch.testing.assert_close(decoder(ids, condition)[0], lm(ids)[0])


# ------------------------------------------------------------------------------------- captions for classes of sound

ONE_SOUND = {
    "a dog barks loudly": "dog",
    "Rain is pouring down on a tin surface.": None,  # pouring is another class
    "rain falls hard": "rain",
    "a man is talking": "speech_man",
    "a woman speaks slowly": "speech_woman",
    "a piano tune": "piano",
    "a guitar song plays": "guitar",
    "a dog barks and a cat meows": None,
    "a dog barks near a running train": None,
    "thunder, then silence": None,
    "a helicopter is flying very high up in the sky above us": None,  # too long
    "the engine runs": None,  # a class whose words mean other things too often
    "something happens": None,
}


@pytest.fixture(scope="module")
def by_class(tmp_path_factory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("sounds")
    prompts = [sound.captions[0] for sound in SOUND_CLASSES.values() if sound.words]
    pairs = [f"{a} near {b}" for a, b in itertools.permutations(prompts, 2)]
    many = [f"a cow moos {number}" for number in range(100)]
    (folder / "one.txt").write_text("\n".join([*ONE_SOUND, *pairs]))
    (folder / "two.txt").write_text("\n".join(["A dog barks loudly", *many]))
    entries = [f'[[texts]]\nname = "{name}"\nfiles = ["{name}.txt"]\nof = "audio"\n' for name in ("one", "two")]
    (folder / "data.toml").write_text("\n".join(entries))
    return captions_by_class(Job(folder, folder, folder))


@pytest.mark.parametrize(("caption", "category"), ONE_SOUND.items())
def test_a_found_caption_goes_to_the_one_class_that_it_names(by_class, caption, category):
    assert [name for name, some in by_class.items() if caption.lower() in some] == ([category] if category else [])


def test_no_found_caption_names_another_sound(by_class):
    for category, captions in by_class.items():
        own = SOUND_CLASSES[category].captions
        assert tuple(captions[: len(own)]) == own
        kin = next((group for group in (VOICES, MUSIC) if category in group), (category,))
        for caption in captions[len(own) :]:
            assert category not in FOUND_BY_HAND_ONLY
            assert len(caption.split()) <= LONGEST
            assert {name for name, sound in SOUND_CLASSES.items() if sound.named_in(caption)} <= set(kin)


def test_no_class_has_more_than_its_share_and_none_has_a_caption_twice(by_class):
    assert len(by_class["cow"]) == MOST + len(SOUND_CLASSES["cow"].captions)
    assert all(len(captions) == len(set(captions)) for captions in by_class.values())


def test_two_sounds_make_one_caption():
    made = {joined("a dog barks", "rain falls", random.Random(seed)) for seed in range(20)}
    assert "a dog barks while rain falls" in made
    assert all("a dog barks" in text and "rain falls" in text for text in made)


# ------------------------------------------------------------------------------------------------ other settings


def test_recipe_and_network_can_be_given_other_values(job):
    other = replace(job, settings=(("dim", "96"), ("dropout", "0.25"), ("removed", "0.5"), ("beta2", "0.96")))
    recipe, config = other.configured(captioner.RECIPE, CausalLMConfig(vocab=50))
    assert (config.vocab, config.dim, config.dropout) == (50, 96, 0.25)
    assert (recipe.removed, recipe.beta1, recipe.beta2, recipe.epochs) == (0.5, 0.9, 0.96, captioner.RECIPE.epochs)
    assert job.configured(CausalLMConfig()) == (CausalLMConfig(),)
    assert replace(job, epochs=0.5).configured(captioner.RECIPE)[0].epochs == 0.5


def test_the_papers_own_values_can_be_chosen(job):
    masked = (("masked", "0.1"), ("removed", "0"), ("rate", "0.1"), ("auxiliary", "5e-4"), ("variational", "1"))
    (recipe,) = replace(job, settings=masked).configured(mask_denoiser.RECIPE)
    rates = [mask_denoiser.masking_rate(recipe, random.Random(seed)) for seed in range(2000)]
    assert set(rates) == {0.0, 0.1} and 0.07 < sum(rates) / 0.1 / len(rates) < 0.13
    assert (recipe.auxiliary, recipe.variational) == (5e-4, 1.0)


@pytest.mark.parametrize(
    ("setting", "says"),
    [(("width", "9"), "choose from epochs, .*vocab, dim"), (("dim", "wide"), "dim=wide is not possible")],
)
def test_a_setting_that_is_not_possible_is_refused(job, setting, says):
    with pytest.raises(CaptionLabError, match=says):
        replace(job, settings=(setting,)).configured(RECIPE, CausalLMConfig())


def test_runs_with_different_settings_do_not_go_on_from_each_other(job):
    run(job)
    _, other = run(replace(job, settings=(("dim", "9"),)), seed=5)
    assert other["history"] != run(job)[1]["history"]


def test_less_than_an_epoch_is_a_share_of_its_batches(job):
    seen = []

    def counted(model, batch):
        seen.append(1)
        return squared_error(model, batch)

    fit(job, "short", network(0), batches, STEPS, counted, on_held_out, replace(RECIPE, epochs=0.25), "-error")
    assert len(seen) == STEPS / 4


def test_a_kill_within_an_epoch_costs_only_what_came_after_the_last_checkpoint(job, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    straight, _ = run(job)

    class Killed(Exception):
        pass

    steps = []

    def until_killed(model, batch):
        steps.append(1)
        if len(steps) == STEPS + 6:
            raise Killed
        return squared_error(model, batch)

    again = replace(job, cache=tmp_path / "other cache")
    with pytest.raises(Killed):
        run(again, loss=until_killed)
    torch.manual_seed(99)
    steps.clear()
    resumed, _ = run(again, seed=7, loss=lambda model, batch: (steps.append(1), squared_error(model, batch))[1])
    assert len(steps) == (EPOCHS - 1) * STEPS - 5
    assert all(
        torch.equal(a, b) for a, b in zip(straight.state_dict().values(), resumed.state_dict().values(), strict=True)
    )


def test_the_record_of_a_training_tells_its_command(job):
    asked = replace(job, seed=3, epochs=0.5, settings=(("dim", "9"),))
    assert (
        asked.command("cfg") == "python -m captioners train cfg --data DATA --out DIR --seed 3 --epochs 0.5 --set dim=9"
    )
    assert job.command("cfg") == "python -m captioners train cfg --data DATA --out DIR"

"""The training loop on a toy problem, the corpus readers on a made-up folder, and captions for clips that have a class."""

import itertools
import json
import math
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.language_model import CausalLM, CausalLMConfig
from captioners.profiles.store import save_part
from captioners.sound_classes import MUSIC, SOUND_CLASSES, VOICES
from captioners.training import PARTS, Job, corpus, train
from captioners.training.captioner import warm_start
from captioners.training.loop import _warmup_cosine, fit
from captioners.training.sound_captions import FOUND_BY_HAND_ONLY, LONGEST, MOST, captions_by_class, joined
from captioners.types import CaptionLabError

EPOCHS, STEPS = 4, 12


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
    return fit(job, "toy", network(seed), batches, STEPS, loss, evaluate, EPOCHS, 3e-2, better, ema=0.9, **more)


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


def test_a_finished_run_is_not_run_again(job):
    first, _ = run(job)

    def never(model, batch):
        raise AssertionError("trained again")

    second, report = run(job, seed=3, loss=never)
    assert len(report["history"]) == EPOCHS
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))


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
    model, _ = fit(
        replace(job, start=tmp_path / "old"), "toy", network(0), batches, STEPS, squared_error, on_held_out, 1, 1e-9, "-error", ema=0.0
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


@pytest.fixture
def data(job, monkeypatch):
    """A tiny folder in the layout that the readers expect: two Multi30k pictures, four of Flickr8k."""
    monkeypatch.setattr(corpus, "MULTI30K_PICTURES", 2)
    for folder in ("flickr8k", "esc50", "text", "audibility"):
        (job.data / folder).mkdir(parents=True)
    splits = ["train", "train", "train", "dev"]
    rows = [{"image": f"{i}.jpg", "split": split, "captions": [f"picture {i} {k}" for k in "abcde"]} for i, split in enumerate(splits)]
    (job.data / "flickr8k/captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (job.data / "esc50/esc50.csv").write_text("filename,fold,category,esc10\n1-a.ogg,1,dog,True\n4-b.ogg,4,rain,False\n")
    (job.data / "text/multi30k.txt").write_text("\n".join(f"multi {i} {k}" for k in "abcde" for i in range(2)) + "\n\n")
    (job.data / "text/coco_val2017.txt").write_text("\n".join(f"coco {i // 5} {i % 5}" for i in range(20)))
    (job.data / "text/audiocaps_train.txt").write_text("  a sound  \n\nanother sound\n")
    (job.data / "text/clotho_train.txt").write_text("clotho\n")
    (job.data / "audibility/audible.txt").write_text("to be heard\n")
    (job.data / "audibility/not_audible.txt").write_text("not to be heard\n")
    return job.data


def test_pictures_and_clips_are_read_in_order(data):
    assert [p.path.name for p in corpus.pictures(data)] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    (dev,) = corpus.pictures(data, "dev")
    assert (dev.path, dev.captions) == (data / "flickr8k/images/3.jpg", tuple(f"picture 3 {k}" for k in "abcde"))
    assert [(c.path, c.fold, c.category) for c in corpus.clips(data)] == [
        (data / "esc50/audio/1-a.ogg", 1, "dog"),
        (data / "esc50/audio/4-b.ogg", 4, "rain"),
    ]


def test_text_is_read_without_empty_lines(data):
    assert corpus.texts(data, "audiocaps") == ["a sound", "another sound"]


def test_the_five_captions_of_a_picture_stay_together(data):
    assert corpus.multi30k_groups(data) == [[f"multi {i} {k}" for k in "abcde"] for i in range(2)]


@pytest.mark.parametrize("domain", ["multi30k", "coco", "audiocaps"])
def test_the_halves_share_no_picture_and_leave_nothing_out(data, domain):
    halves = [corpus.half(data, domain, which) for which in (0, 1)]
    assert sorted(halves[0] + halves[1]) == sorted(corpus.texts(data, domain))
    if domain != "audiocaps":
        about = [{text.split()[1] for text in half} for half in halves]
        assert not about[0] & about[1]
        assert all(about)


def test_the_tokenizer_reads_everything_but_the_development_split(data):
    texts = corpus.everything(data)
    assert {"picture 2 e", "multi 1 a", "coco 3 4", "another sound", "clotho", "to be heard", "not to be heard"} <= set(texts)
    assert not any(text.startswith("picture 3") for text in texts)


def test_every_part_has_a_module_that_trains_it():
    from importlib import import_module

    assert all(callable(import_module(f"captioners.training.{module}").train) for module in PARTS.values())


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
    (folder / "text").mkdir()
    prompts = [sound.captions[0] for sound in SOUND_CLASSES.values()]
    pairs = [f"{a} near {b}" for a, b in itertools.permutations(prompts, 2)]
    many = [f"a cow moos {number}" for number in range(100)]
    (folder / "text/audiocaps_train.txt").write_text("\n".join([*ONE_SOUND, *pairs]))
    (folder / "text/clotho_train.txt").write_text("\n".join(["A dog barks loudly", *many]))
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


# -------------------------------------------------------------------------------------------------- other sizes


def test_a_part_can_be_trained_in_another_size(job):
    larger = replace(job, sizes=(("dim", "96"), ("dropout", "0.25")))
    config = larger.sized(CausalLMConfig(vocab=50))
    assert (config.vocab, config.dim, config.dropout) == (50, 96, 0.25)
    assert job.sized(CausalLMConfig()) == CausalLMConfig()


@pytest.mark.parametrize(("size", "says"), [(("width", "9"), "choose from vocab, dim"), (("dim", "wide"), "dim=wide is not possible")])
def test_a_size_that_is_not_possible_is_refused(job, size, says):
    with pytest.raises(CaptionLabError, match=says):
        replace(job, sizes=(size,)).sized(CausalLMConfig())


def test_a_part_whose_network_is_given_has_no_other_size(job):
    with pytest.raises(CaptionLabError, match="leave --set out"):
        train("image-encoder", replace(job, sizes=(("dim", "9"),)))


def test_runs_of_different_sizes_do_not_go_on_from_each_other(job):
    run(job)
    _, other = run(replace(job, sizes=(("dim", "9"),)), seed=5)
    assert other["history"] != run(job)[1]["history"]

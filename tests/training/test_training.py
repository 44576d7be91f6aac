"""Parts of the profile, the chain that trains them, and the settings of a training."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from captioners import training
from captioners.nets.captioner import CaptionDecoder, CaptionerConfig
from captioners.nets.language_model import CausalLM, CausalLMConfig
from captioners.training import PARTS, Job, Recipe, captioner, corpus, mask_denoiser, prefix_denoiser, train_all
from captioners.training.captioner import chosen_pictures, warm_start
from captioners.training.language_model import chosen, like_pairs
from captioners.types import CaptionLabError


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
    assert recorded == ["cfg", "mc-diffusion", "prefix-diffusion"]  # and what was made from it
    assert sum(" done " in line for line in lines) == len(PARTS) - 3


def test_a_part_that_read_other_parts_than_lie_there_is_made_again(job, monkeypatch):
    def train_part(name: str, job: Job) -> dict:
        (job.out / ("tokenizer.json" if name == "tokenizer" else f"{name}.safetensors")).write_text(name)
        ran.append(name)
        return {"minutes": 1.0}

    ran: list[str] = []
    monkeypatch.setattr(training, "import_module", lambda name: SimpleNamespace(train=train_part))
    monkeypatch.setattr(training, "part_hash", lambda name, folder: next(folder.glob(f"{name}.[sj]*")).read_text())
    monkeypatch.setattr(corpus, "counts", lambda data: {})
    job.out.mkdir(parents=True)
    train_all(job, lambda line: None)
    assert json.loads((job.out / "cfg.metrics.json").read_text())["reads"] == {n: n for n in PARTS["cfg"].needs}
    (job.out / "cfg.safetensors").write_text("another decoder")
    ran.clear()
    lines: list[str] = []
    train_all(job, lines.append)
    assert ran == [name for name, part in PARTS.items() if "cfg" in part.needs]
    assert next(line for line in lines if line.startswith("cfg")).split()[1] == "done"


def test_the_captioner_starts_as_the_language_model():
    torch.manual_seed(0)
    lm = CausalLM(CausalLMConfig(vocab=30, dim=16, layers=3)).eval()
    nn.init.normal_(lm.positions)
    decoder = CaptionDecoder(CaptionerConfig(vocab=30, dim=16, text_layers=1, cross_layers=2, media_dim=8)).eval()
    warm_start(decoder, lm)
    ids = torch.randint(30, (2, 7))
    condition = decoder.condition({"audio": torch.randn(2, 20, 8)}, torch.arange(2))
    torch.testing.assert_close(decoder(ids, condition)[0], lm(ids)[0])


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
        replace(job, settings=(setting,)).configured(Recipe(epochs=4, batch=32, lr=3e-2), CausalLMConfig())


def test_the_record_of_a_training_tells_its_command(job):
    asked = replace(job, seed=3, epochs=0.5, settings=(("dim", "9"),))
    assert (
        asked.command("cfg") == "python -m captioners train cfg --data DATA --out DIR --seed 3 --epochs 0.5 --set dim=9"
    )
    assert job.command("cfg") == "python -m captioners train cfg --data DATA --out DIR"


def test_captions_of_one_sound_stand_under_the_tag_of_the_clips_own():
    by_domain = {"picture": ["a dog"], "audiocaps": ["A dog barks", "A dog barks while a man speaks"]}
    moved = like_pairs(by_domain, ["audiocaps"])
    assert moved == {
        "picture": ["a dog"],
        "audiocaps": ["A dog barks while a man speaks"],
        "sound": ["A dog barks"],
    }
    assert by_domain["audiocaps"][0] == "A dog barks", "what was given is left as it was"


def test_a_language_model_may_read_some_of_the_corpora():
    by_domain = {"picture": ["a dog"], "audiocaps": ["a dog barks"], "clotho": ["rain"]}
    assert chosen(by_domain, "") == by_domain
    assert list(chosen(by_domain, "clotho+picture")) == ["clotho", "picture"]
    with pytest.raises(CaptionLabError, match="no corpus called 'music': choose from picture, audiocaps, clotho"):
        chosen(by_domain, "clotho+music")


def test_a_captioner_may_learn_from_some_of_the_pictures():
    sources = ["street"] * 10 + ["squares"] * 20
    assert chosen_pictures(sources, "") == list(range(30))
    assert chosen_pictures(sources, "street") == list(range(10))
    tenth = chosen_pictures(sources, "street+squares:0.1")
    assert tenth[:10] == list(range(10)) and len(tenth) == 12 and min(tenth[10:]) >= 10
    assert chosen_pictures(sources, "street+squares:0.1") == tenth
    with pytest.raises(CaptionLabError, match="no picture set called 'sky': choose from street, squares"):
        chosen_pictures(sources, "sky")
    for share in ("2", "many", "0", "-1", "inf", "nan"):
        with pytest.raises(CaptionLabError, match="give a number above 0, at most 1"):
            chosen_pictures(sources, f"street:{share}")


def test_noise_is_drawn_from_the_levels_that_can_be_read_where_that_is_asked():
    torch.manual_seed(0)
    readable = torch.arange(6000) % 3 == 0
    times = prefix_denoiser.drawn_times(readable, legible=400, steps=1000, exponent=0.7)
    assert times[readable].max() < 400
    assert times[readable].float().mean() == pytest.approx(199.5, abs=5)  # all alike
    others = times[~readable].float() / 1000
    assert 0.99 < others.max() < 1
    assert (others < 0.4).float().mean() == pytest.approx(0.4 ** (1 / 0.7), abs=0.02)  # fewer at little noise


def test_method_4_is_finished_on_noise_from_its_own_weights(job, monkeypatch):
    asked = []

    def train_stage(name, job):
        asked.append(job)
        (recipe,) = job.configured(prefix_denoiser.RECIPE)
        return {"minutes": 2.0, "history": [recipe.epochs], "cider": float(len(asked))}, recipe

    monkeypatch.setattr(prefix_denoiser, "train_stage", train_stage)
    shorter = replace(job, settings=(("epochs", "4"), ("finish", "0.5")))
    report = prefix_denoiser.train("prefix-diffusion", shorter)
    first, last = asked
    assert (first, last.start) == (shorter, job.out)
    (recipe,) = last.configured(prefix_denoiser.RECIPE)
    assert (recipe.epochs, recipe.readable, recipe.believed, recipe.frozen) == (2, 0.9, 0.5, 0)
    assert recipe.settled < prefix_denoiser.RECIPE.settled
    assert report == {"minutes": 4.0, "history": [4.0, 2.0], "cider": 2.0}
    # from given weights there is one stage, and none is added where none is wanted
    prefix_denoiser.train("prefix-diffusion", replace(job, start=job.out))
    prefix_denoiser.train("prefix-diffusion", replace(job, settings=(("finish", "0"),)))
    assert len(asked) == 4

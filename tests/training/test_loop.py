"""The training loop on a toy problem."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from captioners.profiles.store import save_part
from captioners.training import Job, Recipe, loop
from captioners.training.loop import _warmup_cosine, fit

EPOCHS, STEPS = 4, 12
RECIPE = Recipe(epochs=EPOCHS, batch=32, lr=3e-2, ema=0.9)


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

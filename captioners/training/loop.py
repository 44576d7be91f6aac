"""The one training loop: AdamW with a warm-up and a cosine, EMA weights, checkpoints, resume, progress.

Under `accelerate launch` every process takes its share of the batches and the first one measures and writes.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from tqdm import tqdm

from captioners.profiles.store import find_part, load_into
from captioners.training import Job, Recipe

Batch = Any
CHECKPOINT_SECONDS = 240.0  # within an epoch, so that a kill costs minutes


def fit(
    job: Job,
    name: str,
    model: nn.Module,
    batches: Callable[[int], Iterable[Batch]],  # epoch → that epoch's batches, the same for the same epoch
    steps_per_epoch: int,
    loss: Callable[[nn.Module, Batch], Tensor],
    evaluate: Callable[[nn.Module], dict[str, float]],
    recipe: Recipe,
    better: str,  # the metric that picks the best epoch; higher is better unless it starts with "-"
    save: Callable[[nn.Module], None] = lambda model: None,  # called with each new best model
    slower: tuple[nn.Module, float] | None = None,  # a part of the model that learns at this share of the rate
) -> tuple[nn.Module, dict[str, Any]]:
    """Train, keep the best EMA weights by `better`, and return them with a history.

    A killed run goes on where it was.
    """
    epochs = max(1, round(recipe.epochs))
    steps_per_epoch = max(1, round(min(1.0, recipe.epochs) * steps_per_epoch))
    if job.start:
        load_into(model, find_part(name, job.start))
    mixed = job.precision if job.precision != "fp32" else None  # None: what `accelerate launch` was told
    accelerator = Accelerator(cpu=job.device == "cpu", mixed_precision=mixed)
    steps_per_epoch = max(1, steps_per_epoch // accelerator.num_processes)
    first = accelerator.is_main_process
    optimizer = torch.optim.AdamW(
        _groups(model, recipe, slower), lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), fused=True
    )
    total = epochs * steps_per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _warmup_cosine(step, total))
    average = AveragedModel(model, multi_avg_fn=_ema_with_warmup(recipe.ema), use_buffers=True).to(accelerator.device)
    model, optimizer = accelerator.prepare(model, optimizer)

    # with other parts to read, a run is not the same; nor is it in another folder, where hub parts tell no hashes
    where = f"{zlib.crc32(repr((str(job.out.resolve()), job.reads)).encode()):08x}"
    run_name = "-".join([name, where, f"seed{job.seed}", f"{recipe.epochs:g}", *map("=".join, job.settings)])
    checkpoint = job.cache / "checkpoints" / f"{run_name}.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    history: list[dict[str, float]] = []
    best: dict[str, Any] = {"value": -math.inf, "state": None}
    start, done, running, spent, rng = (
        0,
        0,
        0.0,
        0.0,
        None,
    )  # epochs; steps, loss of the epoch that was under way; seconds
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False, map_location=accelerator.device)
        accelerator.unwrap_model(model).load_state_dict(saved["model"])
        average.load_state_dict(saved["average"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        history, best, start, spent = saved["history"], saved["best"], saved["epoch"], saved["seconds"]
        done, running, rng = saved["step"], saved["running"], saved["rng"]

    def write(epoch: int, step: int, seconds: float) -> None:
        """A checkpoint after `step` steps of an epoch."""
        state = {
            "model": accelerator.unwrap_model(model).state_dict(),
            "average": average.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "history": history,
            "best": best,
            "epoch": epoch,
            "step": step,
            "running": running,
            "rng": torch.get_rng_state(),
            "seconds": seconds,
        }
        torch.save(state, checkpoint.with_suffix(".partial"))
        checkpoint.with_suffix(".partial").replace(checkpoint)

    sign, metric = (-1, better[1:]) if better.startswith("-") else (1, better)
    finished = start == epochs
    for epoch in range(start, epochs):
        torch.manual_seed(job.seed * 1000 + epoch)  # dropout's: a resumed run draws what an uninterrupted one does
        began = written = time.perf_counter()
        model.train()
        shares = accelerator.num_processes  # as many batches for every process: they wait for each other
        own_batches = islice(batches(epoch), accelerator.process_index, shares * steps_per_epoch, shares)
        bar = tqdm(
            own_batches,
            total=steps_per_epoch,
            desc=f"{name} {epoch + 1}/{epochs}",
            disable=job.quiet or not first,
            mininterval=5,
        )
        for step, batch in enumerate(bar, 1):
            if step <= done:  # before the kill
                if step == done and rng is not None:
                    torch.set_rng_state(rng.cpu())
                continue
            with accelerator.autocast():
                value = loss(model, batch)
            if not torch.isfinite(value):
                raise FloatingPointError(
                    f"{name}: the loss is {value.item()} in epoch {epoch + 1}; lower the learning rate"
                )
            optimizer.zero_grad(set_to_none=True)
            accelerator.backward(value)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            average.update_parameters(accelerator.unwrap_model(model))
            running += value.item()
            bar.set_postfix(loss=f"{running / step:.3f}")
            now = time.perf_counter()
            if first and shares == 1 and now - written > CHECKPOINT_SECONDS:
                write(epoch, step, spent + now - began)
                written = now
        spent += time.perf_counter() - began
        accelerator.wait_for_everyone()
        done = 0
        if not first:
            running = 0.0
            continue
        average.eval()
        with torch.no_grad():
            measured = evaluate(average.module)
        history.append({"epoch": epoch + 1, "loss": running / steps_per_epoch, "minutes": spent / 60, **measured})
        running = 0.0
        if not job.quiet:
            tqdm.write(f"{name} {history[-1]}")
        if sign * measured[metric] > best["value"]:
            state = {k: v.clone() for k, v in average.module.state_dict().items()}
            best = {"value": sign * measured[metric], "state": state, "metrics": measured, "epoch": epoch + 1}
            save(average.module)
        write(epoch + 1, 0, spent)

    module = average.module
    accelerator.wait_for_everyone()
    if not first:
        return module.eval(), {}
    module.load_state_dict(best["state"])
    if finished:  # before, and now asked for its weights in another folder
        save(module)
    report = {
        **best["metrics"],
        "best_epoch": best["epoch"],
        "epochs": recipe.epochs,
        "minutes": spent / 60,
        "seed": job.seed,
    }
    report |= {"parameters": sum(p.numel() for p in module.parameters()), "history": history}
    return module.eval(), report


def _groups(model: nn.Module, recipe: Recipe, slower: tuple[nn.Module, float] | None) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and single vectors do not. A slower part has a rate of its own."""
    part, share = slower or (nn.Module(), 1.0)
    slow = {id(p) for p in part.parameters()}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault((parameter.ndim > 1, id(parameter) in slow), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": recipe.weight_decay * matrices,
            "lr": recipe.lr * (share if is_slow else 1.0),
        }
        for (matrices, is_slow), parameters in groups.items()
    ]


def _ema_with_warmup(decay: float) -> Callable[[list[Tensor], list[Tensor], Tensor | int], None]:
    """An exponential moving average that forgets the start: after n steps it looks back over n / 9 of them at the
    most.
    """

    @torch.no_grad()
    def update(averages: list[Tensor], current: list[Tensor], count: Tensor | int) -> None:
        keep = min(decay, (1 + int(count)) / (10 + int(count)))
        for average, value in zip(averages, current, strict=True):
            if average.is_floating_point():
                average.lerp_(value.to(average.dtype), 1 - keep)
            else:
                average.copy_(value)

    return update


def _warmup_cosine(step: int, total: int) -> float:
    """Linear over the first 4 %, then half a cosine down to 2 % of the peak."""
    warmup = max(1, round(0.04 * total))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

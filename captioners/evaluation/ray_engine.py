"""The same batches on Ray: actors that load their models once, from the cores of a laptop to a cluster with GPUs.

A worker that dies is started again and its batch is run again; nothing depends on who ran what. Files and code must be
found under the same paths on every machine. `RAY_ADDRESS` names a cluster; without it Ray runs on this machine alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from captioners.evaluation.dataset import Item
from captioners.evaluation.engines import Batches
from captioners.evaluation.worker import BatchResult, Plan, Worker
from captioners.lab import Lab
from captioners.resources import IMPORT_ROOT
from captioners.types import CaptionLabError

RESTARTS = 3  # of one worker, and retries of one batch


class RemoteWorker:
    """The worker inside a Ray actor, with a lab of its own."""

    def __init__(
        self, name: str, device: str, models: str | None, checkpoints: Sequence[str], features: str | None, plan: Plan
    ):
        lab = Lab(name, device, models, checkpoints)
        if features:
            lab.profile.keep_features(Path(features))
        self.worker = Worker(lab, plan)

    def pid(self) -> int:
        """The id of its process, once the models can be used."""
        return os.getpid()

    def result(self, items: Sequence[Item]) -> BatchResult:
        """The result of one batch."""
        return self.worker.caption(self.worker.read(items))


class RayEngine:
    """An engine with `workers` actors (one for each GPU, or core)."""

    def __init__(
        self,
        name: str,
        device: str,
        models: str | None = None,
        checkpoints: Sequence[str] = (),
        features: str | None = None,
        workers: int | None = None,
    ):
        try:
            import ray
        except ImportError:
            raise CaptionLabError("Ray is not installed: run `pip install ray`, or leave --engine ray out.") from None
        if workers is not None and workers < 1:
            raise CaptionLabError(f"--workers {workers} is not possible: give a whole number from 1.")
        models, features = (path and str(Path(path).absolute()) for path in (models, features))
        own = tuple(str(Path(path).absolute()) for path in checkpoints)
        self.ray, self.recipe, self.workers = ray, (name, device, models, own, features), workers
        self.pids: list[int] = []  # of the workers as they were started

    def results(self, lab: Lab, plan: Plan, batches: Batches) -> Iterator[BatchResult]:
        """The batches' results, as they are finished."""
        ray = self.ray
        started = not ray.is_initialized()
        if started:
            os.environ.setdefault("RAY_worker_niceness", "0")  # Ray would let its workers starve beside anything else
            ray.init(
                runtime_env={"env_vars": {"PYTHONPATH": str(IMPORT_ROOT)}},
                include_dashboard=False,
                log_to_driver=False,
                num_cpus=self._cpus(),
            )
        try:
            yield from self._results(plan, [[_absolute(item) for item in batch] for batch in batches])
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, CaptionLabError) else error from None
        except ray.exceptions.RayActorError as error:
            raise CaptionLabError(
                f"A worker died {RESTARTS + 1} times: see Ray's logs, or run with --engine local. {error}"
            ) from error
        finally:
            if started:
                ray.shutdown()

    def _cpus(self) -> int | None:
        """A local Ray gets as many slots as workers; a cluster has its own."""
        return None if os.environ.get("RAY_ADDRESS") else max(self.workers or 0, os.cpu_count() or 1)

    def _results(self, plan: Plan, batches: Batches) -> Iterator[BatchResult]:
        ray = self.ray
        gpus = int(ray.cluster_resources().get("GPU", 0))
        count = min(self.workers or gpus or int(ray.cluster_resources()["CPU"]), len(batches))
        share = {"num_cpus": 1, "num_gpus": min(1, gpus / max(count, 1))}
        actor = ray.remote(**share, max_restarts=RESTARTS, max_task_retries=RESTARTS)(RemoteWorker)
        actors = [actor.remote(*self.recipe, plan) for _ in range(count)]
        self.pids = ray.get([a.pid.remote() for a in actors])
        waiting, running = list(reversed(batches)), {}
        for worker in actors:
            running[worker.result.remote(waiting.pop())] = worker
        while running:
            (finished,), _ = ray.wait(list(running), num_returns=1)
            worker = running.pop(finished)
            if waiting:
                running[worker.result.remote(waiting.pop())] = worker
            yield ray.get(finished)


def _absolute(item: Item) -> Item:
    """Workers have another working folder."""
    return replace(item, path=item.path.absolute())

"""Training on several processes, started as `accelerate launch` starts them: each takes its share of the batches,
and all agree.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from captioners.training import Job, Recipe
from captioners.training.loop import fit

folder = Path(sys.argv[1])
torch.manual_seed(0)
model, seen, saved = nn.Linear(3, 1), [], []


def batches(epoch):
    return [(step, torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * epoch + step))) for step in range(6)]


def loss(model, batch):
    seen.append(batch[0])
    return (model(batch[1]) - batch[1].sum(1, keepdim=True)).square().mean()


def error(model):
    x = torch.eye(3)
    return {"error": (model(x) - x.sum(1, keepdim=True)).square().mean().item()}


job = Job(folder, folder, folder, device="cpu", quiet=True)
_, report = fit(job, "toy", model, batches, 6, loss, error, Recipe(2, 1, 0.1), "-error", save=lambda m: saved.append(1))
rank = torch.distributed.get_rank()
weights = [p.tolist() for p in model.parameters()]
(folder / f"{rank}.json").write_text(json.dumps({"seen": seen, "weights": weights, "saved": len(saved), "reported": bool(report)}))
torch.distributed.destroy_process_group()
"""


def test_two_processes_share_the_batches_and_agree_on_the_weights(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(__file__).resolve().parents[2]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(program),
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["seen"], second["seen"]) == ([0, 2, 4] * 2, [1, 3, 5] * 2)
    assert first["weights"] == second["weights"]
    assert first["saved"] and first["reported"]
    assert not second["saved"] and not second["reported"]

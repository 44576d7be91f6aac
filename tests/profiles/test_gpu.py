"""On a GPU everything is on the GPU: the methods on a pretended one, in both profiles, say what they say on the CPU."""

import json
import math

import fakes
import pytest
import torch
from pretend_gpu import OnGpu, pretend_gpu
from tiny_hub import save_all

from captioners import registry
from captioners.cli import main
from captioners.lab import Lab
from captioners.profiles.hub.model_loader import ModelLoader

METHODS = [spec.id for spec in registry.available()]
BRIEF = {"max_tokens": 4, "num_steps": 2, "num_candidates": 2, "top_k": 8}


def brief(name: str, **values):
    spec = registry.find(name).spec
    known = {c.name: max(BRIEF[c.name], c.low) for c in spec.controls if c.name in BRIEF}
    return spec.settings(**known, **{k: v for k, v in values.items() if spec.listens_to(k)})


def test_tensors_of_two_devices_do_not_meet():
    with pretend_gpu():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert there.device.type == "cuda"
        assert isinstance(there + 1, OnGpu)
        assert (there * torch.tensor(2.0)).tolist() == [2.0, 2.0, 2.0]
        assert not isinstance(there.cpu(), OnGpu)
        assert isinstance(here.to("cuda"), OnGpu)
        assert there[torch.tensor([0, 1])].tolist() == [1.0, 1.0]
        for wrong in (
            lambda: there + here,
            lambda: torch.cat([there, here]),
            lambda: here[there.long()],
            lambda: here @ there,
        ):
            with pytest.raises(RuntimeError, match="same device"):
                wrong()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()


@pytest.mark.parametrize("name", METHODS)
def test_embedded_models_caption_on_a_gpu(name, picture, sound, embedded):
    """A picture and a sound in one batch."""
    media, settings = [picture, sound], [brief(name, lm_weight=0.3), brief(name, guidance_scale=1)]
    here = Lab(embedded)
    expected = [here.score(r, m) for r, m in zip(here.method(name).caption_batch(media, settings), media, strict=True)]
    with pretend_gpu():
        lab = Lab("embedded", "cuda")
        results = [lab.score(r, m) for r, m in zip(lab.method(name).caption_batch(media, settings), media, strict=True)]
        assert all(isinstance(p, OnGpu) for p in lab.profile.models.language_model().parameters())
    assert [r.caption for r in results] == [r.caption for r in expected]
    for mine, theirs in zip(results, expected, strict=True):
        assert {k: v.value for k, v in mine.scores.items()} == pytest.approx(
            {k: v.value for k, v in theirs.scores.items()}, rel=1e-3
        )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("gpu") / "models")


@pytest.mark.parametrize(
    ("name", "kind"), [(m, k) for m in METHODS for k in ("picture", "sound") if (m, k) != ("cfg", "sound")]
)
def test_hub_models_caption_on_a_gpu(name, kind, models, request):
    """In half precision. CoCa describes pictures only."""
    with pretend_gpu():
        lab = Lab("hub", "cuda", str(models))
        result = lab.caption(request.getfixturevalue(kind), name, brief(name, lm_weight=0.3))
    assert result.trace
    assert all(math.isfinite(entry.cond) for entry in result.trace)


@pytest.mark.filterwarnings("ignore:This GPU decodes without CUDA graphs")
def test_recorded_steps_caption_on_a_gpu_as_plain_ones_do(models, picture, monkeypatch):
    """The pretended one cannot record, and does the same steps on tensors that stay where they are."""
    captions, settings = [], brief("cfg", lm_weight=0.3, guidance_scale=2)
    for replays in (False, True):
        monkeypatch.setattr(ModelLoader, "replays", replays)
        with pretend_gpu():
            method = Lab("hub", "cuda", str(models)).method("cfg")
            captions.append([c.caption for c in method.caption(picture, settings).candidates])
    assert captions[0] == captions[1]
    assert method.models.caption_decoder().recordings


@pytest.mark.parametrize(
    ("device", "half", "switch", "replays"),
    [("cuda", True, None, True), ("cuda", True, "0", False), ("cuda", False, None, False), ("cpu", True, None, False)],
)
def test_steps_are_recorded_on_a_gpu_unless_it_is_switched_off_or_trains(device, half, switch, replays, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CAPTION_LAB_CUDA_GRAPHS", raising=False)
    if switch:
        monkeypatch.setenv("CAPTION_LAB_CUDA_GRAPHS", switch)
    assert ModelLoader({}, device, half=half).replays == replays


def test_what_stays_in_full_precision_is_multiplied_in_tf32_on_a_gpu(models):
    before = torch.get_float32_matmul_precision()
    try:
        for device, precision in (("cpu", before), ("cuda", "high")):
            with pretend_gpu():
                Lab("hub", device, str(models))
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


def test_an_evaluation_runs_on_a_gpu(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    for i in range(3):
        fakes.picture(tmp_path / "images" / f"{i}.png", i)
    rows = [{"image": f"{i}.png", "captions": ["a dog runs", "two people walk"]} for i in range(3)]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = []
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.json"
        with pretend_gpu():
            code = main(
                [
                    "evaluate",
                    str(tmp_path),
                    "--device",
                    device,
                    "--method",
                    "cfg",
                    "--set",
                    "max_tokens=4",
                    "--json",
                    str(out),
                ]
            )
        assert code == 0, capsys.readouterr().err
        (run,) = json.loads(out.read_text())["runs"]
        found.append({name: metric["mean"] for name, metric in run["metrics"].items()})
    assert found[1] == pytest.approx(found[0], rel=1e-3)

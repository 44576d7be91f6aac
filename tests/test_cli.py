"""The command line's contracts: what it prints, what it writes, and how it says that something is wrong."""

import json
import subprocess
import sys

import pytest
from fakes import Echo, NoJudges, Shout, picture, profile, sound, use_fakes

from captioners.cli import main
from captioners.cli.settings import settings_for
from captioners.profiles.store import MissingPart
from captioners.types import SettingsError


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    use_fakes(monkeypatch, Echo, Shout)
    monkeypatch.setattr("captioners.lab.load_profile", lambda name, device, models, checkpoints: profile())


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "images").mkdir()
    for i in range(3):
        picture(tmp_path / f"images/{i}.png", i)
    lines = [json.dumps({"image": f"{i}.png", "captions": ["a dog", "a boat in the sun"]}) for i in range(3)]
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    return tmp_path


def run(capsys, *argv) -> tuple[int, str, str]:
    code = main([str(a) for a in argv])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *argv) -> str:
    """The one line on stderr of a command that ends with 2."""
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


# ----------------------------------------------------------------------------------------------------------- list


def test_list_shows_every_control_with_its_range(capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert "echo: Echo (image, audio)" in out
    assert "guidance_scale  How strong. A number from 0 to 5; default 1.0." in out
    assert "One of loud, louder; default 'loud'." in out


def test_list_as_json(capsys):
    methods = json.loads(run(capsys, "list", "--json")[1])["methods"]
    assert [m["id"] for m in methods] == ["echo", "shout"]
    assert methods[0]["controls"][0]["name"] == "guidance_scale"


# -------------------------------------------------------------------------------------------------------- caption


def test_caption_prints_a_caption_and_its_scores_for_every_method(capsys, dataset):
    code, out, err = run(capsys, "caption", dataset / "images/0.png")
    assert (code, err) == (0, "")
    assert "echo: a " in out
    assert "shout: a " in out
    assert "(hash-8)" in out


def test_caption_json_holds_results_with_the_contracts_keys(capsys, dataset):
    code, out, _ = run(
        capsys, "caption", dataset / "images/0.png", "--method", "echo", "--seed", 7, "--force", "2=tree", "--json"
    )
    (result,) = json.loads(out)["results"]
    assert code == 0
    assert set(result) >= {
        "method",
        "caption",
        "candidates",
        "scores",
        "trace",
        "seconds",
        "settings",
        "seed",
        "profile",
        "weights",
    }
    assert (result["method"], result["seed"]) == ("echo", 7)
    assert result["caption"].endswith("tree")
    assert result["scores"]["clipscore"]["encoder"] == "hash-8"


def test_caption_of_a_sound_runs_the_methods_that_know_sound(capsys, tmp_path):
    sound(tmp_path / "clip.wav", 0)
    results = json.loads(run(capsys, "caption", tmp_path / "clip.wav", "--json")[1])["results"]
    assert [r["method"] for r in results] == ["echo"]


def test_a_method_without_weights_is_left_out_unless_it_was_named(capsys, dataset, monkeypatch):
    def decode(self, media, settings, live):
        raise MissingPart("There is no shout.safetensors: run `python -m captioners train shout`.")
        yield

    monkeypatch.setattr(Shout, "decode", decode)
    code, out, err = run(capsys, "caption", dataset / "images/0.png", "--json")
    assert code == 0
    assert [r["method"] for r in json.loads(out)["results"]] == ["echo"]
    assert err.startswith("shout is left out: ")
    assert "train shout" in refused(capsys, "caption", dataset / "images/0.png", "--method", "shout")


# ------------------------------------------------------------------------------------------------------- settings


def test_a_setting_goes_to_the_methods_that_know_it_and_an_addressed_one_wins():
    specs = [Echo.spec, Shout.spec]
    settings = settings_for(specs, ["shout.seed=3", "seed=2", "guidance_scale=2.5", "volume=louder"])
    assert dict(settings["echo"]) == {"guidance_scale": 2.5, "seed": 2}
    assert dict(settings["shout"]) == {"seed": 3, "volume": "louder"}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("guidance_scale=9", ["guidance_scale", "'9'", "from 0 to 5"]),
        ("seed=1.5", ["seed", "'1.5'", "whole number from 0 to 1000"]),
        ("volume=quiet", ["volume", "'quiet'", "one of loud, louder"]),
        ("colour=red", ["'colour'", "echo, shout", "guidance_scale, seed, volume"]),
        ("echo.volume=loud", ["'volume'", "echo", "guidance_scale, seed"]),
        ("whisper.seed=1", ["whisper.seed=1", "echo, shout"]),
        ("seed", ["--set seed", "NAME=VALUE"]),
    ],
)
def test_an_impossible_setting_is_refused_with_what_is_possible(assignment, words):
    with pytest.raises(SettingsError) as error:
        settings_for([Echo.spec, Shout.spec], [assignment])
    assert all(word in str(error.value) for word in words)


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "COMMAND"),
        (["paint"], "invalid choice: 'paint'"),
        (["caption"], "FILE"),
        (
            ["caption", "PICTURE", "--set", "guidance_scale=9"],
            "guidance_scale = '9' is not possible: give a number from 0 to 5.",
        ),
        (
            ["caption", "PICTURE", "--method", "whisper"],
            "There is no method called 'whisper': choose from echo, shout.",
        ),
        (["caption", "PICTURE", "--seed", "x"], "--seed"),
        (["caption", "PICTURE", "--force", "tree"], "POSITION=TOKEN"),
        (["caption", "PICTURE", "--force=-1=tree"], "forced position '-1' is not possible"),
        (["caption", "PICTURE", "--profile", "cloud"], "embedded"),
        (["caption", "PICTURE", "--unknown"], "--unknown"),
        (["caption", "nowhere.png"], "nowhere.png"),
        (["evaluate", "nowhere"], "captions.jsonl"),
        (["evaluate", "DIR", "--limit", "0"], "limit = 0"),
        (["evaluate", "DIR", "--json", "nowhere/out.json"], "nowhere/out.json cannot be written"),
        (["evaluate", "DIR", "--captions", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["evaluate", "DIR", "--captions", "x", "--method", "echo"], "leave --method"),
        (
            ["train", "wheels", "--data", "DIR", "--out", "DIR"],
            "There is no part called 'wheels' in this profile: choose from all, tokenizer",
        ),
        (["train", "tokenizer", "--data", "nowhere", "--out", "DIR"], "There is no folder nowhere"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(capsys, dataset, argv, words):
    places = {"PICTURE": dataset / "images/0.png", "DIR": dataset}
    assert words in refused(capsys, *(places.get(a, a) for a in argv))


def test_a_bad_line_of_given_captions_ends_with_2(capsys, dataset):
    (dataset / "given.jsonl").write_text('{"id": "0.png", "caption": "a dog"}\n{"id": "9.png", "caption": "a dog"}\n')
    assert "given.jsonl, line 2" in refused(capsys, "evaluate", dataset, "--captions", dataset / "given.jsonl")


def test_a_broken_file_ends_with_2(capsys, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 not a picture")
    refused(capsys, "caption", tmp_path / "broken.jpg")


# ------------------------------------------------------------------------------------------------------- evaluate


def test_evaluate_writes_its_files_and_prints_a_table(capsys, dataset):
    outputs = {kind: dataset / f"out.{kind}" for kind in ("json", "csv", "html")}
    options = [word for kind, path in outputs.items() for word in (f"--{kind}", path)]
    code, out, err = run(
        capsys, "evaluate", dataset, "--method", "echo", "--set", "guidance_scale=2", "--limit", 2, *options
    )
    assert (code, err) == (0, "")
    report = json.loads(outputs["json"].read_text())
    assert report["runs"][0]["settings"]["guidance_scale"] == 2.0
    assert [i["id"] for i in report["runs"][0]["items"]] == ["0.png", "1.png"]
    assert "cider" in out
    assert outputs["csv"].read_text().startswith("run,id,caption,")
    assert "<table>" in outputs["html"].read_text()


def test_evaluate_given_captions(capsys, dataset, monkeypatch):
    monkeypatch.setattr("captioners.lab.load_profile", lambda *_: profile(NoJudges()))
    (dataset / "given.jsonl").write_text('{"id": "1.png", "caption": "a dog"}\n{"id": "1.png", "caption": "a boat"}\n')
    code, out, _ = run(
        capsys, "evaluate", dataset, "--captions", dataset / "given.jsonl", "--json", dataset / "out.json"
    )
    assert code == 0
    assert json.loads((dataset / "out.json").read_text())["runs"][0]["n"] == 2
    assert "train image-judge" in out


# ---------------------------------------------------------------------------------------------------------- train


def test_train_hands_its_options_to_the_part(capsys, tmp_path, monkeypatch):
    jobs = []
    monkeypatch.setattr("captioners.training.train", lambda name, job: jobs.append((name, job)) or {"loss": 1.5})
    argv = [
        "train",
        "cfg",
        "--data",
        tmp_path,
        "--out",
        tmp_path / "out",
        "--cache",
        tmp_path / "cache",
        "--seed",
        3,
        "--epochs",
        0.5,
        "--final",
        "--set",
        "dim=96",
    ]
    code, out, _ = run(capsys, *argv)
    ((name, job),) = jobs
    assert job.settings == (("dim", "96"),)
    assert (code, json.loads(out)) == (0, {"loss": 1.5})
    assert (name, job.out, job.seed, job.epochs, job.final, job.device) == (
        "cfg",
        tmp_path / "out",
        3,
        0.5,
        True,
        "auto",
    )
    assert job.out.is_dir()
    assert job.cache.is_dir()


# ----------------------------------------------------------------------------------------------------------- speed


def test_help_does_not_import_torch():
    code = (
        "import sys, runpy; sys.argv = ['captioners', '--help']\ntry: runpy.run_module('captioners', "
        "run_name='__main__')\n"
    )
    code += "except SystemExit as end: assert end.code == 0\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_sweep_runs_every_combination_once(capsys, dataset):
    out = dataset / "sweep.json"
    code, text, _ = run(
        capsys,
        "sweep",
        dataset,
        "--method",
        "echo",
        "--over",
        "guidance_scale=1,2",
        "--over",
        "seed=0,1",
        "--json",
        out,
    )
    assert code == 0
    settings = [r["settings"] for r in json.loads(out.read_text())["runs"]]
    assert [(s["guidance_scale"], s["seed"]) for s in settings] == [(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1)]
    assert "echo guidance_scale=2.0 seed=1" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--over", "guidance_scale=1"], "give --method once"),
        (["--method", "echo", "--over", "guidance_scale="], "write NAME=V1,V2"),
        (["--method", "echo", "--over", "guidance_scale=99"], "guidance_scale = '99' is not possible"),
    ],
)
def test_a_sweep_that_cannot_be_run_says_why(capsys, dataset, arguments, words):
    assert words in refused(capsys, "sweep", dataset, *arguments)

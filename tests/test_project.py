"""The project around the package: pins, README, CI, container and tree agree with each other and with the code."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from huggingface_hub import SpaceHardware

import captioners
from captioners import registry
from captioners.cli.parser import build_parser
from captioners.cli.settings import grid, settings_for
from captioners.profiles.hub.roles import ROLES, choose
from captioners.training import PARTS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FRONT_MATTER = yaml.safe_load(README.split("---\n")[1])
CI = (ROOT / ".ci/run").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
TOP_LEVEL = {"app.py", "captioners", "assets", "tests", "requirements.txt", "README.md", "Dockerfile"}
AROUND = {
    ".ci",
    ".github",
    ".pre-commit-config.yaml",
    ".dockerignore",
    ".gitattributes",
    ".gitignore",
    "LICENSE",
    "NOTICE",
    "pyproject.toml",
}
# named by whoever asked for this project: they stay, imported yet or not
# used where it is there: ray and sqlalchemy by who asks for them, spaces by the host
OPTIONAL = {"ray", "spaces", "sqlalchemy"}
GIVEN = {"gradio", "torch", "transformers", "open-clip-torch", "torchaudio", "plotly", "pillow"}


def normal(name: str) -> str:
    """One spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: str) -> dict[str, str]:
    """{distribution: version}; every line must name exactly one version."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]
    matches = {
        line: re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[a-z]+\])?==([0-9][0-9A-Za-z.]*)", line) for line in lines if line
    }
    assert None not in matches.values(), [line for line, match in matches.items() if match is None]
    return {normal(match[1]): match[2] for match in matches.values()}


FILES = ("requirements.txt", "tests/requirements.txt", "captioners/training/requirements.txt")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name]


def imported(*files: Path) -> set[str]:
    """The distributions that some files import."""
    names = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    owners = packages_distributions()
    ours = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {"app", "captioners"}
    third_party = names - set(sys.stdlib_module_names) - ours
    return {normal(owner) for name in third_party for owner in owners.get(name, [name])}


# --------------------------------------------------------------------------------------------------- requirements


@pytest.mark.parametrize("path", FILES)
def test_every_requirement_is_pinned_exactly(path):
    assert pins(path)


def test_a_loose_requirement_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    for loose in ("torch", "torch>=2", "torch==2.*", "torch~=2.1", "git+https://example.org/x"):
        (tmp_path / "loose.txt").write_text(f"pytest==1.0\n{loose}\n")
        with pytest.raises(AssertionError):
            pins("loose.txt")


def test_what_is_imported_is_required():
    package = [p for p in (ROOT / "captioners").rglob("*.py") if "training" not in p.parts]
    training = list((ROOT / "captioners/training").rglob("*.py"))
    run, test, train = (set(pins(path)) for path in FILES)
    assert imported(ROOT / "app.py", *package) <= run | OPTIONAL
    assert imported(*training) <= run | train
    assert imported(*(ROOT / "tests").rglob("*.py")) <= run | test
    assert run - GIVEN <= imported(ROOT / "app.py", *package, *training)


@pytest.mark.parametrize("path", FILES)
def test_every_requirement_has_one_line_in_the_readme(path):
    told = [normal(name) for name in re.findall(r"^- `([\w.-]+)`: \S", README, re.MULTILINE)]
    assert len(told) == len(set(told))
    assert set(pins(path)) <= set(told)


def test_the_readme_tells_of_no_other_packages():
    told = re.findall(r"^- `([\w.-]+)`: \S", README, re.MULTILINE)
    assert {normal(name) for name in told} == {name for path in FILES for name in pins(path)}


# --------------------------------------------------------------------------------------------------------- README


def test_the_spaces_versions_are_the_pinned_ones():
    assert FRONT_MATTER["sdk"] == "gradio"
    assert FRONT_MATTER["sdk_version"] == pins("requirements.txt")["gradio"]
    python = FRONT_MATTER["python_version"]
    assert f"FROM python:{python}-slim\n" in DOCKERFILE
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert version(oldest) <= version(python)
    assert f"Python {oldest} or later" in README
    assert project["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")


# what a ZeroGPU Space accepts (huggingface.co/docs/hub/spaces-zerogpu), and the companions that belong to each torch
ZERO_PYTHONS = ("3.10.13", "3.12.12")
ZERO_TORCHES = {
    "2.8.0": ("2.8.0", "0.23.0"),
    "2.9.1": ("2.9.1", "0.24.1"),
    "2.10.0": ("2.10.0", "0.25.0"),
    "2.11.0": ("2.11.0", "0.26.0"),
}


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_a_zerogpu_space_accepts_the_pins():
    python, run = FRONT_MATTER["python_version"], pins("requirements.txt")
    assert any(accepted == python or accepted.startswith(f"{python}.") for accepted in ZERO_PYTHONS)
    assert run["torch"] in ZERO_TORCHES
    assert (run["torchaudio"], run["torchvision"]) == ZERO_TORCHES[run["torch"]]


# what is read of a repository beside its weights, by the libraries that read it
SMALL_FILES = {
    "open_clip": "open_clip_config.json",
    "gpt2": "config.json generation_config.json merges.txt tokenizer.json tokenizer_config.json vocab.json",
    "clap": "config.json merges.txt preprocessor_config.json special_tokens_map.json tokenizer.json "
    "tokenizer_config.json vocab.json",
}


def test_a_space_fetches_the_pinned_models_when_it_is_built():
    """All that the hub profile plays and judges with (`test_hub_loading` knows the roles), at the same commits, and of
    every repository one form of the weights and the small files that are read.
    """
    sources = {source.id: source for source in choose().values()}
    assert FRONT_MATTER["suggested_hardware"] == "zero-a10g"
    # for a checkpoint, and for `evaluate`: no page asks for them
    elsewhere = {ROLES[role][0].id for role in ("codes", "text-judge")}
    assert set(FRONT_MATTER["models"]) == set(sources) - elsewhere
    preloaded = [line.split(" ") for line in FRONT_MATTER["preload_from_hub"]]
    assert sorted(name for name, _, _ in preloaded) == sorted(FRONT_MATTER["models"])
    for name, files, revision in preloaded:
        source = sources[name]
        kind = source.family if source.family == "open_clip" else "clap" if "clap" in name else "gpt2"
        assert revision == source.revision
        assert source.weights  # so that the form is known without asking the hub
        assert sorted(files.split(",")) == sorted([source.weights, *SMALL_FILES[kind].split()])


def test_the_readmes_space_is_made_on_hardware_that_the_hub_has():
    named = re.findall(r"^hf repos create .*--flavor (\S+)", README, re.MULTILINE)
    assert FRONT_MATTER["suggested_hardware"] in named
    assert set(named) <= {hardware.value for hardware in SpaceHardware}


def test_the_readme_has_the_two_commands():
    blocks = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert "pip install -r requirements.txt && python app.py\n" in blocks
    assert "pip install -r requirements.txt -r tests/requirements.txt && pytest\n" in blocks


def test_ci_runs_the_readmes_test_command():
    (command,) = re.findall(r"^pip install .* && pytest$", README, re.MULTILINE)
    lines = CI.splitlines()
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line in command.split(" && ")] == command.split(" && ")
    assert {"ruff check .", "ruff format --check .", "mypy"} <= set(lines)
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


def test_ci_fetches_a_browser_where_it_may(tmp_path):
    """The lines of CI that see to Chromium, run with a false apt-get: asked once by root without a browser,
    otherwise never.
    """
    lines = CI[CI.index("if ! command -v chromium") : CI.index("fi\n") + 3]
    for who, there, asked in (("0", False, True), ("0", True, False), ("1000", False, False)):
        bin_ = tmp_path / f"{who}-{there}"
        bin_.mkdir()
        for name, words in {
            "id": f"echo {who}",
            "apt-get": f"echo $* >> {bin_}/log",
            **({"chromium": ""} if there else {}),
        }.items():
            (bin_ / name).write_text(f"#!/bin/sh\n{words}\n")
            (bin_ / name).chmod(0o755)
        subprocess.run(["/bin/bash", "-euo", "pipefail", "-c", lines], env={"PATH": str(bin_)}, check=True)
        log = bin_ / "log"
        assert ("install" in log.read_text() and "chromium" in log.read_text()) if asked else not log.exists()


REPRODUCTION = (ROOT / "assets/REPRODUCTION.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", re.findall(r"^python -m captioners .*$", README + REPRODUCTION, re.MULTILINE))
def test_every_command_in_the_documents_is_understood(line):
    args = build_parser().parse_args(shlex.split(line)[3:])
    assert args.run
    if getattr(args, "over", None):  # the controls' names and values are checked too
        specs = [registry.find(name).spec for name in args.method]
        assert all(settings_for(specs, [*args.set, *point]) for point in grid(args.over))


def test_the_readme_trains_every_part_by_one_command():
    section = README.split("## Train it again")[1].split("\n## ")[0]
    parts = re.findall(r"^python -m captioners train ([\w-]+)", section, re.MULTILINE)
    assert parts[0] == "all" and set(parts[1:]) <= set(PARTS)


def test_what_the_readme_points_to_is_there():
    links = [*re.findall(r"\]\((?!http)([^)#]+)\)", README), FRONT_MATTER["app_file"], FRONT_MATTER["license_link"]]
    tree = README.split("## What is where")[1].split("```")[1]
    inside = re.findall(r"^(?:  )?([\w./]+)  ", tree, re.MULTILINE)
    paths = [name for name in inside if (ROOT / name).exists() or (ROOT / "captioners" / name).exists()]
    assert paths == inside
    assert all((ROOT / link).exists() for link in links), links
    pictures = [link for link in links if link.endswith((".png", ".webp", ".gif"))]
    assert pictures
    assert all((ROOT / picture).stat().st_size < 300_000 for picture in pictures)


# ------------------------------------------------------------------------------------------------- container, tree


def test_the_container_is_not_root_and_can_be_asked_for_its_health():
    instructions = re.findall(r"^([A-Z]+) (.*)$", DOCKERFILE, re.MULTILINE)
    users = [value for name, value in instructions if name == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    assert ("EXPOSE", "7860") in instructions
    assert "HEALTHCHECK" in [name for name, _ in instructions]
    assert instructions[-1][0] == "CMD"
    assert '"7860"' in instructions[-1][1]


def test_the_top_level_is_as_fixed():
    found = {name.split("/")[0] for name in tracked()}
    assert found - AROUND == TOP_LEVEL


def test_nothing_names_a_path_of_one_machine():
    places = re.compile(r"(?<![\w.:/-])/(?:work|root|tmp|home|Users)/\w|[A-Z]:\\\\?Users")
    found = []
    for name in tracked():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".txt", ".toml", ".css", ".js", ".json", "") and path.is_file():
            text = path.read_bytes().decode("utf-8", "ignore")
            found += [f"{name}: {match[0]}" for match in places.finditer(text)]
    assert found == []


# -------------------------------------------------------------------------------------------------------- on-ramp


def test_the_workflow_runs_what_runs_here():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["check"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]
    (python,) = [step["with"]["python-version"] for step in steps if "python-version" in step.get("with", {})]
    assert python == FRONT_MATTER["python_version"]


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_what_the_guides_name_is_there(name):
    text = (ROOT / ".github" / name).read_text(encoding="utf-8")
    named = {path for path in re.findall(r"`((?:captioners|tests)/[\w./]*)`", text) if "METHOD" not in path}
    assert {path for path in named if not (ROOT / path).exists()} == set()
    assert named or name == "ARCHITECTURE.md"


def test_the_changelog_tells_of_this_version():
    changes = (ROOT / ".github/CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {captioners.__version__}\n" in changes

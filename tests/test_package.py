"""The installed package: a wheel, in an environment of its own, away from the checkout, captions a picture."""

import json
import os
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import captioners
from captioners.resources import ASSETS, EXAMPLES

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run(*command: str | Path, folder: Path) -> str:
    """What a command prints; the checkout is on no path of it."""
    quiet = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=folder, env=quiet, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        ROOT,
    ]
    run(*build, folder=folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an environment that has the wheel, and sees this environment's packages instead of fetching
    them again.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / "bin"
    purelib = Path(
        run(
            programs / "python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", folder=folder
        ).strip()
    )
    (purelib / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    install = [sys.executable, "-m", "pip", "--python", programs / "python", "install", "--quiet", "--no-deps", wheel]
    run(*install, folder=folder)
    return programs


def test_the_wheel_holds_the_package_and_its_assets_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name.split("/")[0] for name in names}
    assert inside == {"captioners", f"caption_lab-{captioners.__version__}.dist-info"}
    shipped = {f"captioners/assets/{path.relative_to(ASSETS)}" for path in ASSETS.rglob("*") if path.is_file()}
    assert shipped <= set(names)


def test_what_is_installed_captions_a_picture_away_from_the_checkout(installed, tmp_path):
    place = run(
        installed / "python", "-c", "import captioners.resources as r; print(r.WEIGHTS)", folder=tmp_path
    ).strip()
    assert Path(place).is_relative_to(installed.parent)
    program = installed / "caption-lab"
    told = json.loads(run(program, "caption", EXAMPLES / "dog.jpg", "--method", "cfg", "--json", folder=tmp_path))
    (result,) = told["results"]
    assert result["caption"]
    assert result["scores"].keys() == {"words", "clipscore", "perplexity"}
    assert "usage: caption-lab" in run(program, "--help", folder=tmp_path)
    assert "--port" in run(program, "page", "--help", folder=tmp_path)


def test_the_package_needs_what_requirements_txt_lists():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").split()
    assert PROJECT["project"]["dependencies"] == lines

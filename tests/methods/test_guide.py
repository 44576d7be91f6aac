"""The README's "Add your own method", done as it says."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from captioners import cli, registry
from captioners.lab import Lab
from captioners.ui.components import examples
from captioners.ui.page import build
from captioners.ui.runtime.studio import Studio

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
(GUIDE,) = re.findall(r"```python\n(.*?)```", README.split("## Add your own method")[1].split("\n## ")[0], re.DOTALL)


@pytest.fixture
def guide(monkeypatch) -> ModuleType:
    """The guide's file, imported; its method is gone again afterwards."""
    monkeypatch.setattr(registry, "_METHODS", dict(registry._methods()))
    module = ModuleType("captioners.methods.best_phrase", GUIDE.split('"""')[1])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(GUIDE, "best_phrase.py", "exec"), module.__dict__)
    return module


def test_the_guide_is_twenty_lines_and_its_method_works_everywhere(guide, embedded, capsys):
    assert len(GUIDE.splitlines()) <= 22  # two of them are empty by convention
    studio = Studio(lambda: Lab(embedded))
    for path in (examples.PICTURES[0], examples.SOUNDS[0]):
        (result,) = studio.results(studio.media(path), "best-phrase", [guide.BestPhrase.spec.settings()])
        assert result.caption in guide.PHRASES
        assert len(result.candidates) == len(guide.PHRASES)
        assert "clipscore" in result.scores
    assert "cl-card-best-phrase" in json.dumps(build(studio).config, default=str)
    assert cli.main(["list"]) == 0
    assert "best-phrase" in capsys.readouterr().out

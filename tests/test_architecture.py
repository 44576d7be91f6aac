"""The design's arrows: who may import whom, who may touch files, and that importing the package costs nothing."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "captioners"
MODULES = sorted(PACKAGE.rglob("*.py"))

# layer → the layers it may import, beside itself where it is a package
LAYERS: dict[str, set[str]] = {
    "types": set(),
    "text": set(),
    "run_record": set(),
    "words": set(),
    "contract": {"types"},
    "sound_classes": set(),
    "recently_used": set(),
    "resources": set(),
    "spreadsheets": set(),
    "guidance": {"types"},
    "controls": {"types"},
    "media": {"resources", "types"},
    "nets": set(),
    "decoding": {"contract", "guidance", "text", "types", "words"},
    "captioner": {"allocator", "contract", "decoding", "run_record", "types"},
    "repeats": {"contract", "words"},
    "denoising": {"captioner", "contract", "decoding", "guidance", "run_record", "types"},
    "allocator": set(),
    "profiles": {"allocator", "contract", "media", "nets", "recently_used", "resources", "run_record", "text", "types"},
    "registry": {
        "captioner",
        "profiles",
        "resources",
        "types",
    },  # it finds the methods and hands them a profile's models
    "methods": {
        "captioner",
        "contract",
        "controls",
        "decoding",
        "denoising",
        "guidance",
        "nets",
        "registry",
        "repeats",
        "run_record",
        "text",
        "types",
    },
    "attribution": {"captioner", "types"},
    "metrics": {"attribution", "contract", "sound_classes", "types", "words"},
    "lab": {"attribution", "captioner", "contract", "media", "metrics", "profiles", "registry", "types", "words"},
    "evaluation": {
        "attribution",
        "contract",
        "lab",
        "media",
        "metrics",
        "nets",
        "resources",
        "sound_classes",
        "spreadsheets",
        "types",
    },
    "bench": {"allocator", "evaluation", "guidance", "lab", "nets", "profiles", "registry", "types"},
    "study": {"evaluation", "lab", "media", "registry", "spreadsheets", "types"},
    "cli": {
        "bench",
        "evaluation",
        "lab",
        "media",
        "metrics",
        "profiles",
        "registry",
        "study",
        "training",
        "types",
        "ui",
    },
    "training": {
        "allocator",
        "evaluation",
        "guidance",
        "media",
        "metrics",
        "nets",
        "profiles",
        "resources",
        "sound_classes",
        "text",
        "types",
    },
    "ui": {
        "allocator",
        "attribution",
        "contract",
        "controls",
        "evaluation",
        "lab",
        "media",
        "metrics",
        "profiles",
        "registry",
        "recently_used",
        "resources",
        "spreadsheets",
        "study",
        "types",
    },
    "__init__": {"captioner", "lab", "media", "registry", "types"},
    "__main__": {"cli"},
}
FILE_MODULES = {
    "glob",
    "huggingface_hub",
    "os",
    "pathlib",
    "pickle",
    "safetensors",
    "shutil",
    "subprocess",
    "tempfile",
    "urllib",
}
FILE_CALLS = {
    "open",
    "from_pretrained",
    "from_file",
    "hf_hub_download",
    "read_bytes",
    "read_text",
    "safe_open",
    "snapshot_download",
}
PURE = (
    "types",
    "text",
    "words",
    "run_record",
    "contract",
    "guidance",
    "controls",
    "nets",
    "decoding",
    "captioner",
    "denoising",
    "methods",
)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def code(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: imports for the type checker and docstrings are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        yield from code(node)


def imported(tree: ast.AST) -> set[str]:
    """Dotted names of all imports, also those inside functions; `from a import b` counts as a.b."""
    found = set()
    for node in code(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return found


def wrong_arrows(layer: str, tree: ast.AST) -> list[str]:
    targets = {name for name in imported(tree) if name.split(".")[0] in ("captioners", "")}
    allowed = LAYERS[layer] | {layer}
    return sorted(name for name in targets if name.startswith(".") or name.split(".")[1] not in allowed)


def file_access(tree: ast.AST) -> list[str]:
    """What opens files or names models: modules, calls, `torch.load`, `pretrained=…`."""
    found = [name for name in imported(tree) if name.split(".")[0] in FILE_MODULES]
    for node in code(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called.split(".")[-1] in FILE_CALLS or called in ("torch.load", "torch.save", "np.fromfile"):
            found.append(called)
        found += [
            f"{called}(pretrained=…)"
            for k in node.keywords
            if k.arg == "pretrained" and ast.unparse(k.value) != "False"
        ]
    return sorted(found)


def mentions(tree: ast.AST, word: str) -> list[str]:
    """Names and strings of the code that contain a word."""
    found = []
    for node in code(tree):
        for name in ("id", "attr", "arg", "name", "value"):
            value = getattr(node, name, None)
            if isinstance(value, str) and word in value.lower():
                found.append(value)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    layer = layer_of(path)
    assert layer in LAYERS, f"captioners/{layer} has no place in the design yet: give it one in LAYERS"
    assert wrong_arrows(layer, ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", [p for p in MODULES if layer_of(p) in PURE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_profiles_know_files_and_model_names(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert file_access(tree) == []
    assert mentions(tree, ".safetensors") + mentions(tree, "assets") == []


@pytest.mark.parametrize("path", [p for p in MODULES if layer_of(p) == "methods"], ids=lambda p: p.name)
def test_no_method_speaks_of_a_judge(path):
    assert mentions(ast.parse(path.read_text(encoding="utf-8")), "judge") == []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("methods", "from captioners.metrics.matching import clipscore"),
        ("methods", "from captioners import lab"),
        ("methods", "def f():\n    import captioners.ui.rendering.plots"),
        ("nets", "from captioners.profiles.store import WEIGHTS"),
        ("nets", "from ..profiles import store"),
        ("types", "from captioners import guidance"),
        ("media", "if True:\n    from captioners.nets.encoders import AUDIO_RATE"),
        ("profiles", "from captioners.registry import load"),
        ("metrics", "from captioners.profiles.embedded import EmbeddedModels"),
    ],
)
def test_a_wrong_import_is_found(layer, source):
    assert wrong_arrows(layer, ast.parse(source))


def test_an_import_for_the_type_checker_is_no_arrow():
    assert (
        wrong_arrows("metrics", ast.parse("if TYPE_CHECKING:\n    from captioners.profiles.base import Matcher")) == []
    )


@pytest.mark.parametrize(
    "source",
    [
        "from pathlib import Path",
        "open('weights')",
        "torch.load(name)",
        "def f():\n    AutoModel.from_pretrained(name)",
        "timm.create_model('x', pretrained=True)",
    ],
)
def test_opening_a_file_is_found(source):
    assert file_access(ast.parse(source))


def test_a_word_is_found_in_names_and_strings_and_not_in_docstrings():
    assert len(mentions(ast.parse('"""judge"""\nmodels.judge = loader.get("image-judge")'), "judge")) == 2


# -------------------------------------------------------------------------------------------------------- cycles


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Module → the modules that it imports anywhere, for the type checker and inside functions too."""
    graph: dict[str, set[str]] = {name: set() for name in sources}
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for target in targets:
                known = target if target in sources else target.rpartition(".")[0]
                graph[name] |= {known} & (sources.keys() - {name})
    return graph


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle: what is left when those without imports or importers are taken
    away one by one.
    """
    left = {name: set(targets) for name, targets in graph.items()}
    while ends := [n for n in left if not left[n] & left.keys() or not any(n in left[other] for other in left)]:
        for name in ends:
            left.pop(name)
    return sorted(left)


def test_no_modules_import_each_other_in_a_circle():
    """The package itself offers the names of modules that import it, and is left out."""
    sources = {module_name(path): path.read_text(encoding="utf-8") for path in MODULES}
    del sources["captioners"]
    assert cycle(import_graph(sources)) == []


def test_a_circle_is_found_even_where_only_the_type_checker_sees_it():
    one = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from captioners.b import B"
    assert cycle(import_graph({"captioners.a": one, "captioners.b": "def f():\n    from captioners import a"})) == [
        "captioners.a",
        "captioners.b",
    ]
    assert cycle(import_graph({"captioners.a": one, "captioners.b": "import os"})) == []


# ------------------------------------------------------------------------------------------------------ laziness

HEAVY = ("torch", "transformers", "timm", "gradio", "PIL")


@pytest.mark.parametrize(
    "run",
    [
        "import captioners",
        "import runpy; sys.argv[1:] = ['--help']; runpy.run_module('captioners', run_name='__main__')",
    ],
    ids=["import captioners", "python -m captioners --help"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(run):
    program = (
        f"import sys, atexit; atexit.register(lambda: print('LOADED', [m for m in {HEAVY} if m in sys.modules])); {run}"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("LOADED []\n")


def test_public_names_arrive_when_first_used():
    import captioners

    assert all(getattr(captioners, name) is not None for name in captioners.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        captioners.nothing  # noqa: B018

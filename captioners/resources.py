"""Where the files that come with the package lie: weights, tokenizer, examples, style sheet. No other module knows.

In a checkout `assets/` stands beside the package; an installed wheel carries it inside.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PACKAGE = Path(str(files("captioners")))
IMPORT_ROOT = PACKAGE.parent  # the folder that another process must search to import the package
ASSETS = PACKAGE / "assets" if (PACKAGE / "assets").is_dir() else IMPORT_ROOT / "assets"
WEIGHTS = ASSETS / "weights"
EXAMPLES = ASSETS / "examples"

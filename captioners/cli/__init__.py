"""The command line: page, list, caption, evaluate, sweep, compare-runs, bench, train, study. Options for methods are
made from what they declare.

Exit code 0 on success, 2 on bad input with one line on stderr. Models are imported when a command needs them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from captioners.cli.commands import page_command
from captioners.cli.parser import build_parser
from captioners.types import CaptionLabError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["page"]:
            return page_command(arguments[1:])
        args = build_parser().parse_args(arguments)
        args.line = shlex.join(["python", "-m", "captioners", *arguments])
        args.run(args)
    except (CaptionLabError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0

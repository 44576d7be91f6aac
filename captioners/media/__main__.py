"""The child process of `captioners.media.decoding`: a file on stdin, its format as the argument, the answer on
stdout.
"""

from __future__ import annotations

import contextlib
import sys

from captioners.media.decoding import CHILD_MEMORY, decode_here, pack, pack_error
from captioners.media.errors import MediaError


def limit_memory() -> None:
    """Cap what this process may allocate, where the system can (Linux): a bomb ends in a MemoryError or a dead
    child.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (CHILD_MEMORY, CHILD_MEMORY))


def main() -> None:
    """Decode what stands on stdin once and answer on stdout."""
    limit_memory()
    try:
        answer = pack(decode_here(sys.stdin.buffer.read(), sys.argv[1]))
    except MediaError as error:
        answer = pack_error(error)
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()

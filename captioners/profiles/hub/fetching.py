"""A model's files: from a folder, or from the hub at a pinned revision, only what is needed; and why they cannot be
had, in a sentence.
"""

from __future__ import annotations

import errno
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from captioners.profiles.base import ProfileError
from captioners.profiles.hub.roles import Source

# what of a repository is needed: small files, and weights in the first of these forms that it has
SMALL = ("*.json", "*.txt", "*.model")
WEIGHTS = {
    "open_clip": ("open_clip*.safetensors", "open_clip*.bin"),
    "transformers": ("model*.safetensors", "pytorch_model*.bin"),
    "diffusers": ("*.safetensors", "*.bin"),
    "ours": ("*.safetensors",),
    "any": ("open_clip*.safetensors", "model*.safetensors", "open_clip*.bin", "pytorch_model*.bin"),
}
FORGET = 60.0  # seconds until a hub that could not be reached is asked again


class Reach:
    """Whether the hub could be reached lately: its own library tries for 23 seconds, which must not happen for every
    model.
    """

    def __init__(self) -> None:
        self._lost_until = 0.0

    def lose(self) -> None:
        """Remember that the hub did not answer just now."""
        self._lost_until = time.monotonic() + FORGET

    @property
    def lost(self) -> bool:
        """Whether it is too early to ask the hub again."""
        return time.monotonic() < self._lost_until


REACH = Reach()


def fetch(role: str, source: Source) -> Path:
    """The folder (or our own file) that holds a model; downloads what is missing, or says how to get it."""
    path = Path(source.id).expanduser()
    if path.exists():
        return path / source.subfolder if source.subfolder and (path / source.subfolder).is_dir() else path
    if source.id.startswith((".", "/", "~")) or source.id.count("/") != 1:
        raise ProfileError(
            f"There is no folder {source.id} for the {role}: give a folder that is there or a name on the hub."
        )
    for form in forms(source):
        folder = _snapshot(role, source, form) / source.subfolder
        if any(folder.glob(form)):
            return folder
    raise ProfileError(
        f"{source.id} has no weights as {' or '.join(forms(source))}, which {role} reads: {_instead(role)}"
    )


def forms(source: Source) -> tuple[str, ...]:
    """The file names that a model's weights may have."""
    return (source.weights,) if source.weights else WEIGHTS[source.family]


def download_command(source: Source) -> str:
    """What fetches this model and no more of its repository than is read."""
    pinned = ["--revision", source.revision] if source.revision else []
    includes = [word for pattern in _patterns(source, forms(source)[0]) for word in ("--include", pattern)]
    return shlex.join(["hf", "download", source.id, *pinned, *includes])


def _patterns(source: Source, form: str) -> list[str]:
    if source.subfolder:
        return [f"{source.subfolder}/*.json", f"{source.subfolder}/{form}"]
    return [*SMALL, form]


def _snapshot(role: str, source: Source, form: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            huggingface_hub.snapshot_download(
                source.id, revision=source.revision, allow_patterns=_patterns(source, form), local_files_only=REACH.lost
            )
        )
    except HFValidationError as error:
        advice = "give OWNER/NAME in letters, digits, '-', '_' and '.', or a folder that is there."
        raise ProfileError(f"{source.id!r} for {role} cannot be a name on the hub: {advice}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ProfileError(_reason(role, source, error)) from error


def _reason(role: str, source: Source, error: BaseException) -> str:
    """Why the hub did not give a model, and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    causes, page, command = list(_causes(error)), f"https://huggingface.co/{source.id}", f"`{download_command(source)}`"
    for cause in causes:
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        if isinstance(cause, RevisionNotFoundError):
            return (
                f"{source.id} has no revision {source.revision}: "
                f"name one of {page}/commits/main for {role} with --models FILE."
            )
        if isinstance(cause, GatedRepoError):
            return (
                f"{source.id} is given to those alone who accept its terms: do so at {page}, "
                f"then run `hf auth login` and {command}."
            )
        if isinstance(cause, RepositoryNotFoundError):
            return (
                f"There is no {source.id} on the hub, or it is private: "
                f"check the name for {role}, or run `hf auth login`."
            )
        if status >= 500 or status == 429:
            return (
                f"The hub is too busy or out of order ({status}): run {command} in a few minutes, or {_instead(role)}"
            )
        if getattr(cause, "errno", None) == errno.ENOSPC:
            return (
                f"There is no room on the disk for {source.id}: free some, or set HF_HOME to a folder on a larger one."
            )
    if constants.HF_HUB_OFFLINE:
        return (
            f"{source.id} is not on this machine and HF_HUB_OFFLINE is set: "
            f"unset it and run {command}, or {_instead(role)}"
        )
    REACH.lose()
    return (
        f"{source.id} is not on this machine and the hub cannot be reached: "
        f"check the network and run {command}, or {_instead(role)}"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _instead(role: str) -> str:
    return f"name a folder for {role} with --models FILE; `--profile embedded` needs nothing."

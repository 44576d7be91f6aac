"""The Batch tab: many files, or a zip of them, captioned one by one; a bad file is a row with its reason."""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from captioners.lab import choose_methods
from captioners.media import MAX_BYTES, MediaError, load_media
from captioners.spreadsheets import csv_text
from captioners.types import CaptionLabError, Media, Result, Spec
from captioners.ui.components import examples
from captioners.ui.components.downloads import save_button
from captioners.ui.rendering.markup import number, table
from captioners.ui.runtime.hosting import HEAVY
from captioners.ui.runtime.studio import Studio

MAX_FILES = 200  # files
# what zipfile raises: damaged, its contents damaged, cut short, gone, and, as RuntimeError, encrypted or packed in an
# unknown way
UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
PRIVATE: dict[str, Any] = {"api_visibility": "private"}
NUMBER_FORMATS = {"words": ".0f", "perplexity": ",.1f"}
HEAD = ("file", "method", "caption", "clipscore", "perplexity", "words", "seconds", "error")


@dataclass(frozen=True)
class BatchEntry:
    """One file by one method, or why not."""

    file: str
    method: str = ""
    result: Result | None = None
    error: str = ""

    def cells(self) -> list[Any]:
        """The cells of its row, in the order of HEAD."""
        if self.result is None:
            return [self.file, self.method, "", None, None, None, None, self.error]
        scores = [
            self.result.scores[k].value if k in self.result.scores else None
            for k in ("clipscore", "perplexity", "words")
        ]
        return [self.file, self.method, self.result.caption, *scores, round(sum(self.result.seconds.values()), 3), ""]


def unpacked(paths: Sequence[str]) -> Iterator[tuple[str, str | bytes | MediaError]]:
    """(name, where its bytes are) of every file; what a zip holds is read in memory and within limits."""
    for path in paths:
        if not zipfile.is_zipfile(path):
            yield Path(path).name, path
            continue
        try:
            with zipfile.ZipFile(path) as archive:
                for member in _members(archive):
                    yield member.filename, _read(archive, member)
        except UNREADABLE:
            yield Path(path).name, MediaError("The archive cannot be read: pack the files again as a plain zip.")


def count_files(paths: Sequence[str]) -> int:
    """How many there are to caption, what lies in archives included."""
    return min(MAX_FILES, sum(_count(path) if zipfile.is_zipfile(path) else 1 for path in paths))


def _count(path: str) -> int:
    """How many files an archive holds; none if it cannot be read, which `unpacked` gives a row of its own."""
    try:
        with zipfile.ZipFile(path) as archive:
            return len(_members(archive))
    except UNREADABLE:
        return 0


def _members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """What an archive holds, hidden files and folders left out."""
    return [m for m in archive.infolist() if not m.is_dir() and not Path(m.filename).name.startswith(".")]


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes | MediaError:
    """No more than a file may have, whatever the archive claims."""
    with archive.open(member) as file:
        data = file.read(MAX_BYTES + 1)
    return (
        data
        if len(data) <= MAX_BYTES
        else MediaError(f"The file is larger than {MAX_BYTES // 2**20} MB: make it smaller.")
    )


def caption_files(studio: Studio, paths: Sequence[str], methods: Sequence[str]) -> Iterator[BatchEntry]:
    """The entries of all files, as they are finished."""
    for i, (name, content) in enumerate(unpacked(paths)):
        if i == MAX_FILES:
            yield BatchEntry(name, error=f"Only the first {MAX_FILES} files are taken: send the rest as another batch.")
            return
        try:
            media = _media(name, content)
            specs = choose_methods(
                media.kind, None if not methods else [s.id for s in choose_methods(media.kind) if s.id in methods]
            )
        except CaptionLabError as error:
            yield BatchEntry(name, error=str(error))
            continue
        answers = studio.each(media, [(spec.id, spec.settings()) for spec in specs])
        for spec, answer in zip(specs, answers, strict=True):
            if isinstance(answer, CaptionLabError):
                yield BatchEntry(name, spec.id, error=str(answer))
            else:
                yield BatchEntry(name, spec.id, answer)


def _media(name: str, content: str | bytes | MediaError) -> Media:
    if isinstance(content, MediaError):
        raise content
    return load_media(content, name=name)


def batch_table(rows: Sequence[BatchEntry]) -> str:
    """A table of the entries so far."""

    def cell(name: str, value: Any) -> str:
        if isinstance(value, float):
            return number(value, NUMBER_FORMATS.get(name, ".2f"))
        return escape(str(value)) if value not in (None, "") else "–"

    return table(
        f"{len(rows)} captions", HEAD, [[cell(n, v) for n, v in zip(HEAD, row.cells(), strict=True)] for row in rows]
    )


def batch_csv(rows: Sequence[BatchEntry] | None) -> str:
    """The entries as CSV, for a spreadsheet."""
    return csv_text(HEAD, [row.cells() for row in rows]) if rows else ""


def batch_jsonl(rows: Sequence[BatchEntry] | None) -> str:
    """The entries as JSON lines, one object each."""
    return "".join(
        json.dumps(dict(zip(HEAD, row.cells(), strict=True)), ensure_ascii=False) + "\n" for row in rows or []
    )


class Batch:
    """The tab's components and their wiring.

    Whoever comes to the `tab` first finds an example instead of empty space.
    """

    def __init__(self, studio: Studio, specs: list[Spec], tab: gr.Tab | None = None):
        self.studio, rows = studio, gr.State([])
        gr.HTML(
            f'<p class="cl-legend">Pictures, sounds, or a zip of them; at most {MAX_FILES} files. '
            "Every method runs with its own defaults.</p>"
        )
        with gr.Row():
            files = gr.File(file_count="multiple", label="Files", height=160, elem_id="cl-files")
            with gr.Column():
                methods = gr.CheckboxGroup(
                    [(s.title, s.id) for s in specs], value=[s.id for s in specs], label="Methods"
                )
                with gr.Row():
                    run = gr.Button("Caption all", variant="primary", elem_id="cl-batch")
                    stop = gr.Button("Stop", elem_id="cl-batch-stop")
        shown = gr.HTML(elem_classes="cl-batch")
        with gr.Row(elem_classes="cl-downloads"):
            save_button("Download CSV", "captions.csv", batch_csv, rows, "cl-batch-csv")
            save_button("Download JSONL", "captions.jsonl", batch_jsonl, rows, "cl-batch-jsonl")
        running = run.click(self._run, [files, methods], [shown, rows], **HEAVY, **PRIVATE)
        stop.click(None, cancels=[running], **PRIVATE)
        if tab is not None and not studio.lent:
            tab.select(self._example, rows, shown, **HEAVY, **PRIVATE)

    def _example(self, rows: list[BatchEntry]) -> Any:
        """What a batch looks like: two of our own files by the first method of each kind."""
        if rows:
            return gr.skip()
        files = [examples.PICTURES[0], examples.SOUNDS[0]]
        shown = [
            row
            for path in files
            for row in caption_files(self.studio, [path], [choose_methods(load_media(path).kind)[0].id])
        ]
        return f'<p class="cl-legend">An example, until there are files of yours:</p>{batch_table(shown)}'

    def _run(
        self,
        files: list[str] | None,
        methods: list[str],
        progress: gr.Progress = gr.Progress(),  # noqa: B008 (Gradio's way)
    ) -> Iterator[tuple[str, list[BatchEntry]]]:
        if not files:
            raise gr.Error("There are no files yet: drop some, or a zip.", print_exception=False)
        if not methods:
            raise gr.Error("No method is chosen: tick at least one.", print_exception=False)
        rows: list[BatchEntry] = []
        total, files_done = count_files(files), set()
        for row in caption_files(self.studio, files, methods):
            rows.append(row)
            files_done.add(row.file)
            progress((len(files_done), total), desc=row.file, unit="files")
            yield batch_table(rows), list(rows)

"""Reading of documents from a stranger's folder: each file's kind, and what is left out and why."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge import DataError, Reader
from emberge.errors import UnsoundFileError
from emberge.files import read_regular
from emberge.wording import count_noun, format_size, join_some

from emberge_data.document_rows import read_document_rows
from emberge_data.documents.html_pages import read_html, read_markdown
from emberge_data.documents.python_code import read_python
from emberge_data.documents.source_document import (
    SourceDocument,
    SourceSection,
    UnreadableDocumentError,
    read_plain_text,
)

DOCUMENT_BYTES = 256 << 20
"""Largest number of bytes of a document."""

_TEXT_KINDS: Mapping[str, Callable[[str, str, str], SourceDocument]] = {
    ".txt": read_plain_text,
    ".text": read_plain_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".xhtml": read_html,
    ".py": read_python,
}
_KINDS = ", ".join(_TEXT_KINDS)
# Folders of programs rather than of documents; those whose names begin with a dot are skipped too.
_SKIPPED_FOLDERS = frozenset(("__pycache__", "node_modules", "site-packages"))
_BEIR = ("corpus.jsonl", "corpus.jsonl.gz")
# A word in a file's name, which is a title then, unlike `d103` or `2024-11-02`: three letters, or two of a
# script whose words are shorter.
_WORD = re.compile(r"[^\W\d_]{3}|[^\W\d_a-zA-Z]{2}")


@dataclass(frozen=True, slots=True)
class DocumentReading:
    """Documents that were read, and why others were left out."""

    documents: tuple[SourceDocument, ...]
    warnings: tuple[str, ...] = ()


def read_documents(
    path: Path,
    readers: Sequence[Reader],
    *,
    first: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DocumentReading:
    """Read the documents of a folder, of one file, or of a file of rows with `text` (and `id`, `title`).

    Files are text, Markdown, HTML and Python. A folder with a `corpus.jsonl`, as BEIR has, is that file.
    Hidden files and links are not read. A file that cannot be used is counted in a warning; a bad row is an
    error. With `first`, only so many documents are read.

    Raises:
        DataError: if there is no document with text, or a row has no text column.
    """
    corpus = next((path / name for name in _BEIR if (path / name).is_file()), None)
    if corpus is not None:
        return _read_rows(corpus, readers, first)
    if path.is_file() and path.suffix.lower() not in _TEXT_KINDS:
        return _read_rows(path, readers, first)
    skipped: defaultdict[str, list[str]] = defaultdict(list)  # names of files by the reason
    files = [path] if path.is_file() else sorted(_walk_folder(path, skipped))
    root = path.parent if path.is_file() else path
    documents: list[SourceDocument] = []
    for number, file in enumerate(files):
        if len(documents) == first:
            break
        if progress is not None:
            progress(number, len(files))
        name = file.relative_to(root).as_posix()
        try:
            documents.append(_read_file(file, name))
        except UnreadableDocumentError as error:
            skipped[str(error)].append(name)
    lines = [
        f"{count_noun(len(names), 'file')} left out: {reason} ({join_some(names)})"
        for reason, names in skipped.items()
    ]
    if not documents:
        reasons = "; ".join(lines) or "the folder is empty"
        raise DataError(f"{path}: there is no document with text ({reasons})")
    return DocumentReading(tuple(documents), tuple(lines))


def _walk_folder(folder: Path, skipped: defaultdict[str, list[str]]) -> Iterator[Path]:
    """Yield the files of known kinds below a folder, without hidden ones; links are not followed."""
    for directory, folders, names in os.walk(folder):
        folders[:] = filter(_is_shown, folders)
        links = (name for name in folders if Path(directory, name).is_symlink())
        for name in sorted([*filter(_is_shown, names), *links]):
            file = Path(directory, name)
            if reason := _explain_skip(file):
                skipped[reason].append(file.relative_to(folder).as_posix())
            else:
                yield file


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED_FOLDERS


def _explain_skip(file: Path) -> str:
    """Return why a file is not read, "" if it is of a kind that is."""
    if file.is_symlink():
        return "a link, which may lead out of the folder"
    if not file.is_file():
        return "no regular file"
    return "" if file.suffix.lower() in _TEXT_KINDS else f"of another kind than {_KINDS}"


def _read_file(file: Path, name: str) -> SourceDocument:
    """Return a file's document."""
    title = re.sub("[_-]", " ", file.stem) if _WORD.search(file.stem) else ""
    try:
        if file.stat().st_size > DOCUMENT_BYTES:
            raise UnreadableDocumentError(f"larger than {format_size(DOCUMENT_BYTES)}; cut it")
        content = read_regular(file, limit=DOCUMENT_BYTES)
    except (OSError, UnsoundFileError):
        raise UnreadableDocumentError("cannot be opened") from None
    document = _TEXT_KINDS[file.suffix.lower()](name, _decode(content), title)
    if not document.has_text:
        raise UnreadableDocumentError("without text")
    return document


def _decode(content: bytes) -> str:
    """Return a file's text, with line feeds at the ends of lines."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableDocumentError("not UTF-8; save it so (iconv -t UTF-8)") from None
    if "\x00" in text:
        raise UnreadableDocumentError("binary, not text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_rows(path: Path, readers: Sequence[Reader], first: int | None) -> DocumentReading:
    """Read a file of rows, each a document of one section."""
    documents: dict[str, SourceDocument] = {}
    without_text = 0
    for row in read_document_rows(path, readers):
        if len(documents) == first:
            break
        name = row.name or f"row {row.where.rpartition(':')[2]}"
        if name in documents:
            raise DataError(f"{row.where}: the id '{name}' was given before; ids are unique")
        title = " ".join(row.title.split())
        document = SourceDocument(name, title, (SourceSection((), row.text),))
        if document.has_text:
            documents[name] = document
        else:
            without_text += 1
    if not documents:
        raise DataError(f"{path}: there is no document with text")
    noun = count_noun(without_text, "document")
    warnings = (f"{noun} of {path.name} left out: without text",) * bool(without_text)
    return DocumentReading(tuple(documents.values()), warnings)

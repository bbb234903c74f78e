"""Reading of documents from a stranger's folder: each file's kind, and what is left out and why."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emberge import DataError, Reader
from emberge.data import read_document_rows
from emberge.files import UnsoundFileError, read_regular
from emberge.wording import count_noun, human_size, join_some

from emberge_data.documents.html_pages import read_html
from emberge_data.documents.markdown_pages import read_markdown
from emberge_data.documents.pdf_pages import UnreadablePdfError, can_read_pdf, read_pdf
from emberge_data.documents.python_code import read_python
from emberge_data.documents.rst_pages import read_rst
from emberge_data.documents.source_document import SourceDocument, SourceSection, read_plain_text

TEXT_LIMIT = 16 << 20
"""Largest number of bytes of a document of text; a long book has one."""
PDF_LIMIT = 256 << 20
"""Largest number of bytes of a PDF file."""

_TEXT_KINDS: Mapping[str, Callable[[str, str, str], SourceDocument | None]] = {
    ".txt": read_plain_text,
    ".text": read_plain_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".rst": read_rst,
    ".html": read_html,
    ".htm": read_html,
    ".xhtml": read_html,
    ".py": read_python,
}
_KINDS = ", ".join([*_TEXT_KINDS, ".pdf"])
# Folders of programs rather than of documents, beside those whose names begin with a dot.
_SKIPPED_FOLDERS = frozenset(("__pycache__", "node_modules", "site-packages"))
_BEIR = ("corpus.jsonl", "corpus.jsonl.gz")
# Pages of a PDF file that are read where only the first documents are: each may take a tenth of a second.
_FIRST_PAGES = 10
# A word in a file's name: three letters, or two of a script whose words are shorter.
_WORD = re.compile(r"[^\W\d_]{3}|[^\W\d_a-zA-Z]{2}")
# Characters of a byte order mark, and how the text after it is coded.
_MARKED_CODINGS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


@dataclass(frozen=True, slots=True)
class DocumentReading:
    """Documents that were read, and why others were left out; `is_whole` unless there are more of them."""

    documents: tuple[SourceDocument, ...]
    warnings: tuple[str, ...] = ()
    is_whole: bool = True


def read_documents(
    path: Path,
    readers: Sequence[Reader],
    *,
    first: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DocumentReading:
    """Read the documents of a folder, of one file, or of a file of rows with `text` (and `id`, `title`).

    Files are text, Markdown, reStructuredText, HTML, Python, and PDF where pypdf is installed. A folder with
    a `corpus.jsonl`, as BEIR has, is that file. Hidden files and links are not read. A file that cannot be
    used is counted in a warning; a bad row is an error. With `first`, only so many documents are read, at
    even distances among the files, and of a PDF file the first pages.

    Raises:
        DataError: if there is no document with text, or a row has no text column.
    """
    corpus = next((path / name for name in _BEIR if (path / name).is_file()), None)
    if corpus is not None:
        return _read_rows(corpus, readers, first)
    if path.is_file() and path.suffix.lower() not in (*_TEXT_KINDS, ".pdf"):
        return _read_rows(path, readers, first)
    skipped = _SkippedFiles()
    files = [path] if path.is_file() else sorted(_walk_folder(path, skipped))
    chosen = _choose_evenly(files, first)
    root = path.parent if path.is_file() else path
    documents = []
    for number, file in enumerate(chosen):
        if progress is not None:
            progress(number, len(chosen))
        name = file.relative_to(root).as_posix()
        document = _read_file(file, name, skipped, None if first is None else _FIRST_PAGES)
        if document is not None:
            documents.append(document)
    if not documents:
        raise DataError(_explain_nothing(path, skipped))
    return DocumentReading(tuple(documents), tuple(skipped.lines()), len(chosen) == len(files))


@dataclass
class _SkippedFiles:
    """The files that are not read, by the reason."""

    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        self.names.setdefault(reason, []).append(name)

    def lines(self) -> Iterator[str]:
        """Yield a line for each reason: how many files, why, and the first of them."""
        for reason, names in self.names.items():
            yield f"{count_noun(len(names), 'file')} left out: {reason} ({join_some(names)})"


def _walk_folder(folder: Path, skipped: _SkippedFiles) -> Iterator[Path]:
    """Yield the files of known kinds below a folder, without hidden ones; links are not followed."""
    for directory, folders, names in os.walk(folder):
        place = Path(directory)
        for name in folders:
            if _is_shown(name) and (place / name).is_symlink():
                skipped.add("a link, which may lead out of the folder", name)
        folders[:] = [name for name in folders if _is_shown(name)]
        for name in sorted(filter(_is_shown, names)):
            if _is_readable_kind(place / name, (place / name).relative_to(folder), skipped):
                yield place / name


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED_FOLDERS


def _is_readable_kind(file: Path, name: Path, skipped: _SkippedFiles) -> bool:
    """Return whether a file is of a kind that is read here; note why if not."""
    suffix = file.suffix.lower()
    if file.is_symlink():
        skipped.add("a link, which may lead out of the folder", name.as_posix())
    elif not file.is_file():
        skipped.add("no regular file", name.as_posix())
    elif suffix == ".pdf" and not can_read_pdf():
        skipped.add('PDF is read with pypdf, pip install "emberge[pdf]"', name.as_posix())
    elif suffix not in _TEXT_KINDS and suffix != ".pdf":
        skipped.add(f"of another kind than {_KINDS}", name.as_posix())
    else:
        return True
    return False


def _choose_evenly(files: Sequence[Path], count: int | None) -> Sequence[Path]:
    if count is None or count >= len(files):
        return files
    return [files[(number * len(files)) // count] for number in range(count)]


def _title_from_name(stem: str) -> str:
    """Return the words of a file's name; "" if it has none, such as `d103` or `2024-11-02`."""
    return stem.replace("_", " ").replace("-", " ") if _WORD.search(stem) else ""


def _read_file(
    file: Path, name: str, skipped: _SkippedFiles, first_pages: int | None
) -> SourceDocument | None:
    """Return a file's document, None with the reason noted if there is none."""
    suffix = file.suffix.lower()
    limit = PDF_LIMIT if suffix == ".pdf" else TEXT_LIMIT
    title = _title_from_name(file.stem)
    try:
        if file.stat().st_size > limit:
            skipped.add(f"larger than {human_size(limit)}; cut it", name)
            return None
        content = read_regular(file, limit=limit)
        document = (
            read_pdf(name, content, title, first_pages)
            if suffix == ".pdf"
            else _TEXT_KINDS[suffix](name, _decode(content), title)
        )
    except (UnreadablePdfError, _UnreadableTextError) as error:
        skipped.add(str(error), name)
        return None
    except (OSError, UnsoundFileError):
        skipped.add("cannot be opened", name)
        return None
    if document is None:
        skipped.add("no Python that can be parsed", name)
    elif not document.has_text:
        skipped.add("without text", name)
    return document if document is not None and document.has_text else None


class _UnreadableTextError(ValueError):
    """The error for bytes that are no text."""


def _decode(content: bytes) -> str:
    """Return a file's text, with line feeds at the ends of lines.

    Raises:
        _UnreadableTextError: if it is not UTF-8, or UTF-16 with a byte order mark.
    """
    coding = next((name for mark, name in _MARKED_CODINGS if content.startswith(mark)), "utf-8-sig")
    if coding == "utf-8-sig" and b"\x00" in content:
        raise _UnreadableTextError("binary, not text")
    try:
        text = content.decode(coding)
    except UnicodeDecodeError:
        raise _UnreadableTextError("not UTF-8; save it so (iconv -t UTF-8)") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _explain_nothing(path: Path, skipped: _SkippedFiles) -> str:
    reasons = "; ".join(skipped.lines()) or "the folder is empty"
    return f"{path}: there is no document with text ({reasons})"


def _read_rows(path: Path, readers: Sequence[Reader], first: int | None) -> DocumentReading:
    """Read a file of rows, each a document of one section."""
    documents: dict[str, SourceDocument] = {}
    without_text = 0
    has_more = False
    for row in read_document_rows(path, readers):
        if first is not None and len(documents) >= first:
            has_more = True
            break
        name = f"row {row.number}" if row.name is None else row.name
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
    return DocumentReading(tuple(documents.values()), warnings, not has_more)

"""PDF files, read by pypdf if it is installed (`pip install "emberge[pdf]"`)."""

from __future__ import annotations

import importlib.util
import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from emberge_data.documents.source_document import (
    SectionBuilder,
    SourceDocument,
    UnreadableDocumentError,
)

_MOST_PAGES = 20_000
# What pypdf raises for a damaged file beside its own errors.
_FAULTS = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(RecursionError, MemoryError, OverflowError),
)
_HYPHEN = re.compile(r"(?<=[^\W\d_])-\n(?=[a-zà-ÿ])")


def can_read_pdf() -> bool:
    """Return whether pypdf is installed."""
    return importlib.util.find_spec("pypdf") is not None


def read_pdf(
    name: str, content: bytes, fallback_title: str, first_pages: int | None = None
) -> SourceDocument:
    """Return the text of a PDF's first pages, by default of all, as one section.

    Words that are divided at a line's end are joined.

    Raises:
        UnreadableDocumentError: if the file has a password or is damaged.
    """
    from pypdf.errors import DependencyError, PyPdfError

    builder = SectionBuilder()
    with _quiet_pypdf():
        try:
            _read_pages(builder, content, first_pages)
        except DependencyError:
            raise UnreadableDocumentError("is encrypted") from None
        except UnreadableDocumentError:
            raise
        except (PyPdfError, *_FAULTS) as error:
            raise UnreadableDocumentError("is damaged") from error
    return builder.build(name, fallback_title)


def _read_pages(builder: SectionBuilder, content: bytes, first: int | None) -> None:
    """Add the first pages of a PDF to a builder."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(content))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableDocumentError("has a password")
    title = str((reader.metadata and reader.metadata.title) or "")
    builder.title = " ".join(_encodable(title).split())
    for page in islice(reader.pages, _MOST_PAGES if first is None else first):
        for paragraph in _split_page(_encodable(page.extract_text())):
            builder.paragraph(paragraph)


def _split_page(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", _HYPHEN.sub("", text)):
        yield " ".join(paragraph.split())


def _encodable(text: str) -> str:
    return text.replace("\x00", "").encode(errors="replace").decode()


@contextmanager
def _quiet_pypdf() -> Iterator[None]:
    """Keep pypdf from logging each fault of a file that it repairs."""
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)

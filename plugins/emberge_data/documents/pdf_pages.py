"""PDF files, read by pypdf if it is installed (`pip install "emberge[pdf]"`)."""

from __future__ import annotations

import importlib.util
import io
import logging
import re
from itertools import islice

from emberge_data.documents.source_document import (
    SectionBuilder,
    SourceDocument,
    UnreadableDocumentError,
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
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs each fault that it repairs
    try:
        reader = PdfReader(io.BytesIO(content))
        title = str((reader.metadata and reader.metadata.title) or "")
        builder = SectionBuilder(" ".join(_encodable(title).split()))
        for page in islice(reader.pages, first_pages):
            text = _HYPHEN.sub("", _encodable(page.extract_text()))
            for paragraph in re.split(r"\n\s*\n", text):
                builder.paragraph(" ".join(paragraph.split()))
    except Exception as error:  # damaged files make pypdf fail in many ways
        raise UnreadableDocumentError("is damaged, or has a password") from error
    return builder.build(name, fallback_title)


def _encodable(text: str) -> str:
    return text.replace("\x00", "").encode(errors="replace").decode()

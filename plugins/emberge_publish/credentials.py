"""Search for credentials in texts, by the forms that their issuers give them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from emberge import EmbergeError
from emberge.files import open_regular
from emberge.wording import printable

Content = Path | bytes
# Letters before a form belong to a word, as in `risk-…`; the letter of an escaped line end does not.
_WORD_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
_FORMS = {
    "a token of Hugging Face": r"hf_[A-Za-z0-9]{16,}",
    "a key of AWS": r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    "a token of GitHub": r"gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}",
    "an API key": _WORD_START
    + r"sk-(?:(?:proj|svcacct|admin|ant|or|live|test)-[A-Za-z0-9_-]{16,}|[A-Za-z0-9]{20,})",
    "a key of Stripe": _WORD_START + r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "a token of Slack": r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{10,}",
    "a key of Google": r"AIza[0-9A-Za-z_-]{30,}",
}
_ANY = re.compile("|".join(f"({form})" for form in _FORMS.values()))
_NAMES = tuple(_FORMS)
# Bytes that are searched at once, and those of them that are searched again with the next ones: no form
# needs more to be known.
_PIECE, _OVERLAP = 1 << 20, 1 << 10
# A file with a zero byte among its first bytes is not a text.
_SNIFFED_BYTES = 1 << 13
_HEADER_SIZE_BYTES = 8  # bytes of the number before a safetensors header


def hide_credentials(text: str) -> str:
    """Return a text with the user's token and all that looks like a credential replaced by `…`."""
    token = _own_token()
    return _ANY.sub("…", text.replace(token, "…") if token else text)


def require_no_credentials(files: Mapping[str, Content]) -> None:
    """Check that the files' names and texts, and the headers of weights, contain no credential.

    Raises:
        EmbergeError: if they do; the message has file, line and kind of each, never the credential.
    """
    findings = [
        f"{hide_credentials(printable(name))}{place}: has {kind} in it; take it out, and revoke it"
        for name, content in files.items()
        for place, kind in _find_credentials(name, content)
    ]
    if findings:
        raise EmbergeError("\n".join(findings))


def _own_token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _find_credentials(name: str, content: Content) -> Iterator[tuple[str, str]]:
    """Yield (place, kind) of the first credential of each kind in a file."""
    seen_kinds = set()
    if match := _ANY.search(name):
        yield " (its name)", _NAMES[(match.lastindex or 1) - 1]
    with io.BytesIO(content) if isinstance(content, bytes) else open_regular(content) as file:
        for line, kind in _search_pieces(_read_text(name, file)):
            if kind not in seen_kinds:
                seen_kinds.add(kind)
                yield f":{line}", kind


def _read_text(name: str, file: IO[bytes]) -> Iterator[str]:
    """Yield a file's text in pieces: only the header of weights, and nothing of other binary files."""
    remaining = None
    if name.endswith(".safetensors"):
        remaining = int.from_bytes(file.read(_HEADER_SIZE_BYTES), "little")
    elif b"\0" in file.read(_SNIFFED_BYTES):
        return
    else:
        file.seek(0)
    while piece := file.read(_PIECE if remaining is None else min(_PIECE, remaining)):
        remaining = None if remaining is None else remaining - len(piece)
        yield piece.decode("latin-1")  # a character a byte: all forms are ASCII


def _search_pieces(pieces: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, kind) of every credential in a text given in pieces."""
    token, overlap, line = _own_token(), "", 1
    for piece in pieces:
        text = overlap + piece
        for match in _ANY.finditer(text):
            yield line + text.count("\n", 0, match.start()), _NAMES[(match.lastindex or 1) - 1]
        if token and (offset := text.find(token)) >= 0:
            yield line + text.count("\n", 0, offset), "your token of the hub"
        overlap = text[-_OVERLAP:]
        line += text.count("\n", 0, len(text) - len(overlap))

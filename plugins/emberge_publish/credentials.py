"""Credentials in texts: found wherever they are, by the forms that their issuers give them."""

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
_APART = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
_FORMS = {
    "a token of Hugging Face": r"hf_[A-Za-z0-9]{16,}",
    "a key of AWS": r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    "a token of GitHub": r"gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}",
    "an API key": _APART
    + r"sk-(?:(?:proj|svcacct|admin|ant|or|live|test)-[A-Za-z0-9_-]{16,}|[A-Za-z0-9]{20,})",
    "a key of Stripe": _APART + r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "a token of Slack": r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{10,}",
    "a key of Google": r"AIza[0-9A-Za-z_-]{30,}",
}
_ANY = re.compile("|".join(f"({form})" for form in _FORMS.values()))
_NAMES = tuple(_FORMS)
# Bytes that are searched at once, and those of them that are searched again with the next ones: no form
# needs more to be known.
_PIECE, _AGAIN = 1 << 20, 1 << 10
# A file with a zero byte among its first ones is no text.
_SNIFFED = 1 << 13
_LENGTH = 8  # bytes of the number before a safetensors header


def hide_credentials(text: str) -> str:
    """Return a text without the user's token and without anything that has the form of a credential."""
    token = _own_token()
    return _ANY.sub("…", text.replace(token, "…") if token else text)


def require_no_credentials(files: Mapping[str, Content]) -> None:
    """Look through the text of all files, their names, and the headers of weights.

    Raises:
        EmbergeError: with the file, the line and the kind of what was found, and never with it itself.
    """
    found = [
        f"{hide_credentials(printable(name))}{where}: has {what} in it; take it out, and revoke it"
        for name, content in files.items()
        for where, what in _credentials_in(name, content)
    ]
    if found:
        raise EmbergeError("\n".join(found))


def _own_token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _credentials_in(name: str, content: Content) -> Iterator[tuple[str, str]]:
    """Yield place and kind of each kind of credential in a file, at its first line."""
    seen = set()
    if named := _ANY.search(name):
        yield " (its name)", _NAMES[(named.lastindex or 1) - 1]
    with io.BytesIO(content) if isinstance(content, bytes) else open_regular(content) as file:
        for line, what in _lines_with(_text_of(name, file)):
            if what not in seen:
                seen.add(what)
                yield f":{line}", what


def _text_of(name: str, file: IO[bytes]) -> Iterator[str]:
    """Yield the text of a file in pieces; of weights their header, of another binary file nothing."""
    left = None
    if name.endswith(".safetensors"):
        left = int.from_bytes(file.read(_LENGTH), "little")
    elif b"\0" in file.read(_SNIFFED):
        return
    else:
        file.seek(0)
    while piece := file.read(_PIECE if left is None else min(_PIECE, left)):
        left = None if left is None else left - len(piece)
        yield piece.decode("latin-1")  # a character a byte: all forms are ASCII


def _lines_with(pieces: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the kind of every credential in a text that comes in pieces."""
    token, kept, line = _own_token(), "", 1
    for piece in pieces:
        text = kept + piece
        for match in _ANY.finditer(text):
            yield line + text.count("\n", 0, match.start()), _NAMES[(match.lastindex or 1) - 1]
        if token and (place := text.find(token)) >= 0:
            yield line + text.count("\n", 0, place), "your token of the hub"
        kept = text[-_AGAIN:]
        line += text.count("\n", 0, len(text) - len(kept))

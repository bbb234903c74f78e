"""Markdown of cards: front matter of untrusted ones; code and links that text from outside cannot end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml
from emberge.errors import UnsoundFileError
from emberge.files import open_regular
from emberge.wording import Markdown, make_printable, make_printable_lines, to_markdown

# Comment after the line of a card's code that loads the model by its step's name.
MODEL_NAME_COMMENT = "  # the path of this folder, or its hub id"
CARD_FILE = "README.md"
_URL_CHARACTERS = "/:?&=+,;@%~!$-._"  # kept in an address; brackets and spaces would end a link
_LONGEST_CARD_BYTES = 1 << 20
_FENCE = "---"
_NULLS = ("", "~", "null", "Null", "NULL")


def write_code_span(text: str) -> Markdown:
    """Return text as inline code, in one line, for use in a table too."""
    line = make_printable(" ".join(text.split()))
    if not line:
        return Markdown()  # backticks with nothing between them are no code
    if "\\|" in line:  # a table would read the backslash as part of its escape `\|`
        escaped_text = "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in line)
        return Markdown(f"<code>{escaped_text}</code>")
    line = line.replace("|", "\\|")
    fence = "`" * (_measure_longest_run(line) + 1)
    return Markdown(f"{fence} {line} {fence}" if len(fence) > 1 else f"`{line}`")


def write_code_block(text: str, language: str = "") -> list[str]:
    """Return the lines of a block of code, with a fence that no line of the text can close."""
    fence = "`" * max(3, _measure_longest_run(text) + 1)
    return [f"{fence}{language}", *make_printable_lines(text).split("\n"), fence]


def write_link(text: str, address: str | None) -> Markdown:
    """Return plain text as a link to a web page; the text alone if `address` is not http or https."""
    if address is None or urlsplit(address).scheme not in ("http", "https"):
        return to_markdown(text)
    return Markdown(f"[{to_markdown(text)}]({quote(address, safe=_URL_CHARACTERS)})")


def _measure_longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def read_front_matter(folder: Path) -> Mapping[str, Any]:
    """Return the front matter of a folder's model card; empty if there is none or it cannot be read.

    Each scalar is its text in the file, so that the language `no` is not False; keys without a value are left
    out.
    """
    try:
        with open_regular(folder / CARD_FILE) as card:
            text = card.read(_LONGEST_CARD_BYTES).decode("utf-8-sig", errors="replace")
        # Anybody writes cards: nothing is merged or repeated that a few lines of aliases could stand for.
        content = yaml.load(split_card(text)[0], Loader=yaml.BaseLoader)
    except (OSError, UnsoundFileError, yaml.YAMLError, RecursionError):
        return {}
    if not isinstance(content, Mapping):
        return {}
    return {key: value for key, value in content.items() if value not in _NULLS}


def split_card(text: str) -> tuple[str, str]:
    """Return the YAML at the head of a card and the text below it; "" and the whole text without any."""
    lines = text.split("\n")
    if not lines or lines[0].strip() != _FENCE:
        return "", text
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == _FENCE), None)
    if end is None:
        return "", text
    return "\n".join(lines[1:end]), "\n".join(lines[end + 1 :])


def read_licence(front: Mapping[str, Any]) -> str | None:
    """Return the licence that the front matter of a card states; None without one."""
    stated = front.get("license")
    if stated == "other":
        stated = front.get("license_name") or stated
    names = stated if isinstance(stated, list) else [stated]
    licences = [name for name in names if isinstance(name, str) and name not in _NULLS]
    return ", ".join(licences) or None

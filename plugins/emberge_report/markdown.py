"""Code and links in Markdown, in which text from outside can close nothing."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from emberge.wording import Markdown, printable, printable_lines, prose

# Comment after the line of a card's code that loads the model by its step's name.
NAME_REMARK = "  # the path of this folder, or its hub id"
_URL_CHARACTERS = "/:?&=+,;@%~!$-._"  # kept in an address; brackets and spaces would end a link


def code_span(text: str) -> Markdown:
    """Return text as inline code, in one line, for use in a table too."""
    line = printable(" ".join(text.split()))
    if not line:
        return Markdown()  # backticks with nothing between them are no code
    if "\\|" in line:  # a table would read the backslash as part of its escape `\|`
        escaped_text = "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in line)
        return Markdown(f"<code>{escaped_text}</code>")
    line = line.replace("|", "\\|")
    fence = "`" * (_measure_longest_run(line) + 1)
    return Markdown(f"{fence} {line} {fence}" if len(fence) > 1 else f"`{line}`")


def code_block(text: str, language: str = "") -> list[str]:
    """Return the lines of a block of code, with a fence that no line of the text can close."""
    fence = "`" * max(3, _measure_longest_run(text) + 1)
    return [f"{fence}{language}", *printable_lines(text).split("\n"), fence]


def web_link(text: str, address: str | None) -> Markdown:
    """Return plain text as a link to a web page; the text alone if `address` is not http or https."""
    if address is None or urlsplit(address).scheme not in ("http", "https"):
        return prose(text)
    return Markdown(f"[{prose(text)}]({quote(address, safe=_URL_CHARACTERS)})")


def _measure_longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)

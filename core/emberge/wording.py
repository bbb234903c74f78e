"""Words of messages and tables: lists that are cut, counts with their nouns, sizes, and text from outside.

Prompts, names and licences come from strangers. `make_printable` shows them on a terminal. In Markdown, which
may be a web page on a hub, `format_markdown_row` and `format_markdown_table` escape all that is not
`Markdown` already, so only cells with markup need to be marked.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Text that is safe to show as it is, so that its characters need not be checked one by one.
_PLAIN_TEXT = re.compile(r"[\n\t -~]*")
# Characters of width 0 that words of several scripts, and emoji, need.
_JOINERS = "\u200c\u200d"
# Endings of nouns whose plural is not formed with "s" alone.
_ENDINGS = ((r"(?<![aeiou])y$", "ies"), (r"(s|x|z|ch|sh)$", r"\1es"))
# Markdown's special characters, and beginnings of a line that make it a list item or a rule.
_MARKDOWN_SPECIALS = re.compile(r"([\\`*{}\[\]<>#|~]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;))")
_OPENING = re.compile(r"^(?=[-+=](?:[-=\s]|$))|^(\d+)(?=[.)](?:\s|$))")
# Absolute paths, with spaces between quotes, plus signs, ends of the text and a colon; else one of at least
# two names within a text that is no address.
_PATH = re.compile(r"(?<![^'+])~?/(?:[^\n:;,+' ]| (?!~?/))+(?![^'+:])")
_PATH_IN_TEXT = re.compile(r"(?:file://|(?<![\w.~/:<]))~?(?:/[^\s/'\"`|,;:()<>\[\]{}+]+){2,}/?")
_ALIGNMENT_RULES = {"l": "---", "r": "---:"}


def join_some(words: Iterable[str], most: int = 3) -> str:
    """Return the first `most` words joined by commas, and the number of the others: `a, b, c and 2 more`."""
    listed = list(words)
    more_text = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more_text


def count_noun(count: float, noun: str) -> str:
    """Return the number and the noun, plural if needed: `1 step`, `0.5 points`, `1,200 merge strategies`."""
    return f"{count:,{'g' if isinstance(count, float) else ''}} {noun if count == 1 else make_plural(noun)}"


def format_counts_by_first_word(names: Iterable[str]) -> str:
    """Return counts of tensors by the first words of names: `visual (351 tensors), lm_head (1 tensor)`."""
    counted = Counter(name.partition(".")[0] for name in names)
    return ", ".join(f"{word} ({count_noun(n, 'tensor')})" for word, n in counted.items())


def show_chain(links: Iterable[str | Mapping[str, Any]]) -> str:
    """Return a strategy as recipes write it in one line: `trim (density 0.5) → sign_consensus`."""
    return " → ".join(map(_show_link, links))


def _show_link(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"{value}".lower() if isinstance(value, bool) else f"{value}"
    return ", ".join(
        f"{name} ({', '.join(f'{key} {_show_link(inner)}' for key, inner in options.items())})"
        if isinstance(options, Mapping)
        else f"{name} {options}"
        for name, options in value.items()
    )


def make_plural(noun: str) -> str:
    """Return the regular plural of an English noun: `steps`, `strategies`, `losses`."""
    for ending, instead in _ENDINGS:
        if re.search(ending, noun):
            return re.sub(ending, instead, noun)
    return f"{noun}s"


def format_path(path: Path) -> str:
    """Return the path as text for messages, relative to the current folder if it is inside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def format_size(count: float) -> str:
    """Return a number of bytes in three digits and a decimal unit: `1.3 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 999.5:  # which three digits would round to 1e+03
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB" if abs(count) < 999.5 else f"{count:,.0f} TB"


def format_duration(seconds: float) -> str:
    """Return a time as text: `8.2 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds_left:02} s"


def hide_folders(value: Any) -> Any:
    """Return text, or the values and keys of JSON, with each absolute path shortened to its last name."""
    if isinstance(value, str):
        for pattern in (_PATH, _PATH_IN_TEXT):
            value = pattern.sub(lambda found: found[0].rstrip("/").rpartition("/")[2], value)
        return value
    if isinstance(value, Mapping):
        keys = [hide_folders(key) for key in value]
        counts = Counter(keys)
        names = [f"{key} ({n})" if counts[key] > 1 else key for n, key in enumerate(keys, 1)]
        return dict(zip(names, map(hide_folders, value.values()), strict=True))
    return [hide_folders(one) for one in value] if isinstance(value, list | tuple) else value


def make_file_name(text: str) -> str:
    """Return a text as a file name that every file system accepts."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip(".") or "_"


def shorten(text: str, most: int) -> str:
    """Return text as one line of at most `most` characters; what is cut ends with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def make_printable(text: object) -> str:
    r"""Return text as one line for a terminal, log or card.

    Control characters (terminal escapes, line ends), lone surrogates and marks of writing direction are
    written as escapes, `\x1b`. Called where text leaves the program, and nowhere before.
    """
    plain_text = str(text)
    # Nearly all texts are plain; checking each character would take a hundred times as long.
    return plain_text if plain_text.isprintable() else "".join(map(_escape_unprintable, plain_text))


def make_printable_lines(text: str) -> str:
    """Return text of several lines, each as `make_printable` shows it; line ends and tabs stay."""
    if _PLAIN_TEXT.fullmatch(text):
        return text
    return "".join(c if c in "\n\t" else _escape_unprintable(c) for c in text)


def _escape_unprintable(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")


class Markdown(str):
    """Text that is Markdown already; any other text is escaped when it becomes a cell."""

    __slots__ = ()


def to_markdown(text: str) -> Markdown:
    """Return plain text as one line of Markdown that is displayed unchanged."""
    if isinstance(text, Markdown):
        return text
    escaped = _MARKDOWN_SPECIALS.sub(r"\\\1", make_printable(" ".join(text.split())))
    return Markdown(_OPENING.sub(r"\1\\", escaped))


def format_markdown_row(cells: Iterable[str]) -> str:
    """Return one row of a table; cells that are not `Markdown` are escaped."""
    return f"| {' | '.join(map(to_markdown, cells))} |"


def format_markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], align: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a table; cells that are not `Markdown` are escaped.

    `align` has `l` or `r` for each column; columns without a letter are left-aligned.
    """
    sides = [*align, *"l" * (len(head) - len(align))]
    return [
        format_markdown_row(head),
        f"| {' | '.join(_ALIGNMENT_RULES[side] for side in sides)} |",
        *map(format_markdown_row, rows),
    ]

"""Builder of HTML and SVG that is always well-formed and escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is already markup; plain text is escaped when it becomes a child."""

    __slots__ = ()


Child = str | Markup | None | Iterable["Child"]


def tag(name: str, *children: Child, **attributes: str | float | None) -> Markup:
    """Return one element with its children inside.

    Attribute names lose a trailing underscore, and other underscores become hyphens (`class_`,
    `stroke_width`); an attribute or child that is None is omitted. Elements without children are
    self-closing, so that the page is XML as well as HTML.
    """
    head = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_write_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = join(children)
    return Markup(f"<{name}{head}>{content}</{name}>" if content else _write_empty(name, head))


def join(children: Child) -> Markup:
    """Return children side by side, escaped where they are plain text."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(escape(_drop_unprintable(children), quote=False))
    return Markup("".join(join(child) for child in children))


# Elements that HTML allows without a closing tag; SVG's may too.
_VOID = {"meta", "br", "hr", "col", "path", "line", "circle", "rect", "polygon", "use"}


def _write_empty(name: str, head: str) -> str:
    return f"<{name}{head}/>" if name in _VOID else f"<{name}{head}></{name}>"


def _write_value(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return _drop_unprintable(str(value))


def _drop_unprintable(text: str) -> str:
    """Return text without the control characters and lone surrogates that HTML and XML refuse."""
    return "".join(c for c in text if c in "\t\n\r" or (c >= " " and not "\ud800" <= c <= "\udfff"))

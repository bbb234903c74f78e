"""A heat map of a study: by how much each pair's loss changes when they are trained together."""

from __future__ import annotations

from emberge_boom.study.study import Study
from emberge_boom.study.svg import drawing, element, short, text
from emberge_boom.study.tree import leaves

__all__ = ["heat_map"]

WIDTH = 1040.0
_NAME = 22  # characters of a name
_LETTER = 7.0
_STRONGEST = 0.72  # opacity of the strongest change, so that numbers stay readable on it
_STEPS = 24  # of the scale


def heat_map(study: Study) -> str:
    """Draw all pairs as SVG, datasets in the order of the tree; on the diagonal each one's loss alone."""
    names = [study.names[leaf] for leaf in leaves(study.tree)]
    limit = max((abs(one.change) for one in study.interactions), default=0.0) or 1.0
    room = min(_NAME, max(map(len, names))) * _LETTER + 18
    size = min(64.0, (WIDTH - 2 * room) / len(names))
    top = 0.71 * room + 8
    cells = [
        _cell(study, (row, column), (room + j * size, top + i * size), size, limit)
        for i, row in enumerate(names)
        for j, column in enumerate(names)
    ]
    labels = [
        text(room - 8, top + (i + 0.5) * size + 4, short(name, _NAME), text_anchor="end")
        + _slanted(room + (i + 0.5) * size, top - 8, short(name, _NAME))
        for i, name in enumerate(names)
    ]
    bottom = top + size * len(names)
    most = "; ".join(
        f"{' and '.join(one.pair)} {100 * one.change:+.1f} %" for one in study.conflicts[:3]
    )
    label = f"Change of the loss of each pair when trained together; most harm: {most}"
    scale = _scale(room, bottom + 26, limit)
    return drawing(WIDTH, bottom + 72, label, *cells, *labels, scale)


def _slanted(x: float, y: float, words: str) -> str:
    return text(x, y, words, transform=f"rotate(-45 {x:.1f} {y:.1f})")


def _cell(
    study: Study, names: tuple[str, str], at: tuple[float, float], size: float, limit: float
) -> str:
    row, column = names
    place = {"x": at[0] + 1, "y": at[1] + 1, "width": size - 2, "height": size - 2, "rx": 2.0}
    if row == column:
        value = study.singles[row]
        title, number = f"{row} alone: loss {value:.4g}", _loss(value, size)
        style, written = "fill:var(--panel);stroke:var(--line)", "tick"
    else:
        one = study.between(row, column)
        title = (
            f"{row} and {column}: loss {one.joint:.4g} together, {one.apart:.4g} apart "
            f"({100 * one.change:+.2f} %), distance {one.distance:.4g}"
        )
        number, style, written = _percent(one.change, size), _colour(one.change / limit), ""
    shown = [element("title", _plain(title)), element("rect", style=style, **place)]
    if size >= 22:
        middle = at[0] + size / 2, at[1] + size / 2 + 4
        font = None if size >= 40 else "font-size:9.5px"
        shown.append(text(*middle, number, written, text_anchor="middle", style=font))
    return element("g", *shown)


def _plain(words: str) -> str:
    from html import escape

    return escape(words, quote=False)


def _colour(share: float) -> str:
    """Blue where training together helps, orange where it harms, by how much."""
    return f"fill:var(--c{0 if share > 0 else 1});fill-opacity:{_STRONGEST * abs(share):.3f}"


def _percent(change: float, size: float) -> str:
    digits = 1 if size >= 40 else 0
    written = f"{100 * change:+.{digits}f}"
    return written.replace("-", "\N{MINUS SIGN}") if written.strip("+-0.") else "0"


def _loss(value: float, size: float) -> str:
    return f"{value:.3f}" if size >= 40 else f"{value:.1f}"


def _scale(x: float, y: float, limit: float) -> str:
    """Draw the colours from the strongest help to the strongest harm, with their numbers."""
    step = 12.0
    width = step * _STEPS
    boxes = [
        element(
            "rect",
            x=x + i * step,
            y=y,
            width=step,
            height=12.0,
            style=_colour((i + 0.5) / _STEPS * 2 - 1),
        )
        for i in range(_STEPS)
    ]
    marks = [
        text(
            x + width * (share + 1) / 2,
            y + 26,
            f"{_percent(share * limit, 64)} %",
            "tick",
            **_MIDDLE,
        )
        for share in (-1.0, 0.0, 1.0)
    ]
    words = "change of the loss when trained together, in %; grey: the loss alone"
    return element("g", *boxes, *marks, text(x + width + 34, y + 10, words, "axis"))


_MIDDLE: dict[str, str | float | None] = {"text_anchor": "middle"}

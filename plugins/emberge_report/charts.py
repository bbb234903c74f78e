"""Charts of lines as SVG, drawn by matplotlib in the colours of the page.

A page is light or dark by variables of CSS, so charts are drawn in placeholders which become these variables.
Models also differ in shape, so that charts can be read without colour.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Points (x, y) in order of x; a y that is None or not finite interrupts a line.
Curve = Sequence[tuple[float, float | None]]
# Largest number of points of a curve, so that noise is averaged and pages of long trainings stay light.
MOST_POINTS = 100
_WIDTH, _HEIGHT = 880, 300
# Labels of an axis at most; others are left out.
_MOST_LABELS = 12
# Variables of the page's style sheet; a number in this list is the colour that matplotlib draws with.
_VARIABLES = ("ink", "soft", "line", "grid", "neutral", *(f"c{i}" for i in range(8)))
# Characters that HTML and XML refuse: most control characters, and lone surrogates.
_REFUSED_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_SHAPES = tuple(zip("●■◆▲▼◄►", "osD^v<>", strict=True))


@dataclass(frozen=True, slots=True)
class Look:
    """Look of a model in a page: a class of the style sheet, a sign, and the sign's name in matplotlib."""

    style: str
    sign: str
    marker: str


# Look of a model that is compared with but was not made here.
NEUTRAL_LOOK = Look("neutral", *_SHAPES[0])


def assign_looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each name; colour and shape repeat with different periods."""
    return {
        name: Look(f"c{i % 8}", *_SHAPES[i % len(_SHAPES)])
        for i, name in enumerate(dict.fromkeys(names))
    }


@dataclass(frozen=True, slots=True)
class Line:
    """Named line of a chart."""

    name: str
    look: Look
    points: Curve
    marked: bool = False


def can_draw() -> bool:
    """Return whether matplotlib is installed; without it charts are empty."""
    return find_spec("matplotlib") is not None


def draw_lines(
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    label: str,
    places: Sequence[str] = (),
    from_zero: bool = False,
) -> Markup:
    """Return a line chart above the names of its lines; `label` says its content in words.

    `places` names the positions 0, 1, 2… of the x axis.
    """
    if not can_draw():
        return Markup()
    with _open_axes(label) as (axes, drawn):
        axes.grid(axis="y")
        for line in lines:
            axes.plot(
                *_split_axes(line.points),
                color=_colour(line.look.style),
                linewidth=2,
                marker=line.look.marker if line.marked else "",
                markersize=6,
            )
        axes.set(xlabel=x, ylabel=y)
        are_whole = all(at == round(at) for line in lines for at, _ in line.points)
        axes.locator_params(axis="x", integer=are_whole)
        if places:
            shown = range(0, len(places), math.ceil(len(places) / _MOST_LABELS))
            axes.set_xticks(shown, [places[i] for i in shown])
        if from_zero:
            axes.set_ylim(bottom=0)
    return Markup("").join((*drawn, _draw_legend(lines)))


@contextmanager
def _open_axes(label: str) -> Iterator[tuple[Axes, list[Markup]]]:
    """Yield axes to draw on, and a list that has their SVG once the context is left."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn: list[Markup] = []
    page = {
        "svg.fonttype": "none",
        "svg.hashsalt": label,
        "text.parse_math": False,
        "font.size": 12,
        "axes.edgecolor": _colour("line"),
        **{f"{axis}tick.major.size": 0 for axis in "xy"},
        **{f"{part}.labelcolor": _colour("soft") for part in ("axes", "xtick", "ytick")},
        **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
        "grid.color": _colour("grid"),
        "axes.axisbelow": True,
        **{f"{part}.facecolor": "none" for part in ("figure", "axes")},
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Scripts that matplotlib's own font lacks are shown in the font of the browser.
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(page)
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), dpi=72, layout="constrained")
        yield figure.subplots(), drawn
        drawn.append(_write_svg(figure, label))


def _write_svg(figure: object, label: str) -> Markup:
    """Return a drawing as an element of a page, in its colours and fonts."""
    from io import StringIO
    from xml.etree import ElementTree

    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})  # type: ignore[attr-defined]
    root = ElementTree.fromstring(drop_refused(file.getvalue()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        # An id that nothing refers to would be there once for each chart.
        attributes = {
            name.rpartition("}")[2]: _use_page_colours(text)
            for name, text in element.items()
            if name != "clip-path" and (name != "id" or element.tag == "path")
        }
        element.attrib.clear()
        element.attrib.update(attributes)
        element.tail = None
        if element.tag != "text":
            element.text = None
    for parent in root.iter():
        for part in [one for one in parent if one.tag in ("metadata", "style", "clipPath")]:
            parent.remove(part)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"class": "chart", "role": "img", "aria-label": label})
    return Markup(ElementTree.tostring(root, "unicode"))


def drop_refused(text: str) -> str:
    """Return HTML or XML without the characters that both refuse."""
    return _REFUSED_CHARACTERS.sub("", text)


def _use_page_colours(text: str) -> str:
    """Return the text of an attribute with variables for colours, without fonts, at two decimals."""
    text = re.sub(r"#0000([0-9a-f]{2})", lambda m: f"var(--{_VARIABLES[int(m[1], 16)]})", text)
    return re.sub(r"font-\w+: [^;]*;? ?|\n", "", re.sub(r"(\.\d\d)\d+", r"\1", text))


def _colour(name: str) -> str:
    return f"#0000{_VARIABLES.index(name):02x}"


def _split_axes(points: Curve) -> tuple[list[float], list[float]]:
    """Return the numbers of both axes; infinite ones, which no axis can reach, are gaps."""
    ys = (math.nan if y is None or math.isinf(y) else y for _, y in points)
    return [x for x, _ in points], list(ys)


def _draw_legend(lines: Sequence[Line]) -> Markup:
    names = (Markup("<span>{}{}</span>").format(draw_sign(one.look), one.name) for one in lines)
    return Markup('<p class="legend">{}</p>').format(Markup(" ").join(names))


def draw_sign(look: Look) -> Markup:
    """Return a look's sign in its colour."""
    tag = Markup('<i class="sign {}" data-sign="{}" aria-hidden="true"></i>')
    return tag.format(look.style, look.sign)


def thin(curve: Curve) -> list[tuple[float, float]]:
    """Return a curve's finite numbers; of more than `MOST_POINTS` points, means of neighbours."""
    finite = [(x, y) for x, y in curve if y is not None and math.isfinite(y)]
    if len(curve) <= MOST_POINTS:
        return finite
    cuts = [round(i * len(finite) / MOST_POINTS) for i in range(MOST_POINTS + 1)]
    parts = [finite[a:b] for a, b in pairwise(cuts) if b > a]
    return [(sum(x for x, _ in p) / len(p), sum(y for _, y in p) / len(p)) for p in parts]


def describe_ends(curves: Mapping[str, Curve]) -> str:
    """Return the first and last number of each curve in words."""
    ends = ((name, curve[0][1], curve[-1][1]) for name, curve in curves.items() if curve)
    return "; ".join(f"{name} from {first:.3g} to {last:.3g}" for name, first, last in ends)

"""A report reads from top to bottom as a page of `pages/` does, and is one file without script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest
from emberge import Artifact
from emberge.contracts import DataDetails, Figure, from_json
from emberge_report.charts import can_draw

from tests.support import finished_run as runs
from tests.support.finished_run import BASE, FinishedRun, parsed, report

PAGES = Path(__file__).parent / "pages"
STEPS = ("full", "members.draw=1", "members.draw=2", "members.draw=3", "boom", "scores")
HOSTILE = "<script>x</script>&\"'\x1b"
PREFIX = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "li": "- ", "summary": "> "}
BLOCKS = {*PREFIX, "p", "figcaption", "caption", "pre"}
FIGURES = [
    {
        "title": "Loads",
        "caption": "So & so.",
        "heat_map": {
            "rows": ["a", HOSTILE],
            "columns": ["x", "y", "z"],
            "values": [[1, -2.5, None], [0, 5.0, 0.25]],
        },
        "table": {"head": ["A", "B"], "rows": [["one", 2], [HOSTILE, None]]},
    },
    {"title": "Ways", "table": {"head": ["Way"], "rows": [[HOSTILE]]}},
]
CHANGES = {
    "find": {
        "rows": 1200,
        "kept": 1100,
        "dropped": 100,
        "changed": 3,
        "notes": {"too <far>": 100, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1},
    },
    "clean": {"rows": 1, "kept": 1, "dropped": 0, "changed": 0, "notes": {}},
}


def outline(page: str) -> str:
    """What a reader sees of a page, a line for each heading, paragraph, row, link and drawing."""
    return "\n".join(line.rstrip() for line in lines_of(parsed(page).find("body"))) + "\n"


def lines_of(element: Element | None) -> Iterator[str]:
    assert element is not None
    if element.get("role") == "img":
        yield f"({element.get('aria-label')})"
    elif element.tag == "a":
        yield f"[{text_of(element)}]({element.get('href')})"
    elif element.tag == "tr":
        yield f"| {' | '.join(map(text_of, element))} |"
    elif element.tag in BLOCKS or element.get("class") == "fact":
        yield PREFIX.get(element.tag, "") + text_of(element)
    else:
        for child in element:
            yield from lines_of(child)


def text_of(element: Element) -> str:
    return " ".join(" ".join(texts_of(element)).split())


def texts_of(element: Element) -> Iterator[str]:
    if element.get("aria-hidden") != "true":
        yield element.text or ""
        for child in element:
            yield from texts_of(child)
            yield child.tail or ""


@pytest.fixture(scope="module")
def demo(bert: Path, berts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    run = runs.demo_run(tmp_path_factory.mktemp("run") / "out", bert, berts)
    return report(run, *STEPS)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report on scores, figures and rows in which texts of strangers try to be markup."""
    out = tmp_path_factory.mktemp("hostile") / "out"
    out.mkdir()
    runs.scored(out, {BASE: (0.7, 0.7, 0.7), HOSTILE: (0.71, 0.8, 0.6)})
    details = {"changes": CHANGES, "sentences": ["9 groups <joined>"]}
    artifact = Artifact(
        "data",
        details=from_json(DataDetails, details),
        figures=tuple(from_json(Figure, figure) for figure in FIGURES),
    )
    runs.publish(out, "study", artifact)
    return report(FinishedRun(out), "study", "scores", title=HOSTILE, base=None)


@pytest.mark.skipif(not can_draw(), reason="charts need matplotlib")
@pytest.mark.parametrize("name", ["demo", "hostile"])
def test_a_report_reads_as_its_page(name: str, request: pytest.FixtureRequest) -> None:
    """Where a page is to change, write what the test shows into the file, and read it."""
    page = request.getfixturevalue(name)
    assert outline(page) == (PAGES / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("name", ["demo", "hostile"])
def test_a_page_is_one_file_without_script_or_fixed_colours(
    name: str, request: pytest.FixtureRequest
) -> None:
    page = request.getfixturevalue(name)
    root = parsed(page)
    tags = {element.tag for element in root.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "image"}
    for element in root.iter():
        assert not {"src", "srcset", "data", "action"} & set(element.attrib)
        assert element.get("href", "#").startswith("#")
        assert not [name for name in element.attrib if name.startswith("on")]
        assert not re.search(r"#[0-9a-f]{3,6}\b|rgb", element.get("style", ""))
    assert not re.search(r"url\(|@import|https?:", page)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert {e.get("href", "").removeprefix("#") for e in root.iter("a")} <= set(ids)
    assert all(e.get("aria-label") for e in root.iter() if e.get("role") == "img")
    assert len(page) < 150_000


def test_every_colour_is_defined_for_light_and_dark() -> None:
    style = (files("emberge_report") / "templates/style.css").read_text("utf-8")
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    dark = dark.split("@media print")[0]
    defined = [set(re.findall(r"(--[a-z]+\d?):", part)) for part in (light, dark)]
    used = set(re.findall(r"var\((--[a-z]+\d?)\)", style)) - {"--c", "--share"}
    assert used <= defined[0] == defined[1]

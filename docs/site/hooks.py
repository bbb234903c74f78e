"""Hooks of mkdocs: the reference is generated while the site is built, and no page loads from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from emberge import load_plugins
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from components import PAPER, component_pages
from names import name_pages

# What a browser fetches to show a page: scripts, styles, images and fonts of another server.
_SERVER = r"""["']?(?:https?:)?//"""
_LOADED = re.compile(
    rf"<(?:script|img|iframe|source)[^>]*\ssrc={_SERVER}"
    rf"|<link(?=[^>]*stylesheet)[^>]*href={_SERVER}"
    rf"|url\({_SERVER}|@import {_SERVER}"
)
_ROW = re.compile(r"^\| .*\|$", re.MULTILINE)
# The spaces of 81.0 ± 0.2, of 22.7 / 47.5 and of [-0.1, +0.3].
_SPREAD = re.compile(r"(?<=\d) (?=[±/] \d)|(?<=\d [±/]) (?=\d)|(?<=\d,) (?=[+-]?[\d.]+\])")


_ROOT = Path(__file__).parents[2]
# A clone has no generated page, so pages link the reference's index, and the site the place itself.
_REFERENCE = re.compile(r"reference/index\.md#([\w:-]+)\)")
_DRAWING = re.compile(r"^!\[[^\]]*\]\((?:\.\./)*(drawings/[\w-]+\.svg)\)$", re.MULTILINE)
_EXAMPLE = re.compile(r"^\[[^\]]*\]\((?:\.\./)+(examples/[\w/]+\.py)\)$", re.MULTILINE)
_STYLE = re.compile(r"<style>.*?</style>\n", re.DOTALL)
_places: dict[str, str] = {}
_titles: dict[str, str] = {}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages of the reference to those that are written by hand."""
    plugins = load_plugins(block=())
    pages = {**component_pages(plugins), **name_pages(plugins)}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
        name = path.removeprefix("reference/")
        _places[name.removesuffix(".md")] = name
        _titles[text.partition("\n")[0].removeprefix("# ")] = name
    for path, text in pages.items():
        for anchor in re.findall(r"^##.* \{ #(\S+) \}$", text, re.MULTILINE):
            _places.setdefault(anchor, f"{path.removeprefix('reference/')}#{anchor}")
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn what a reader of a clone sees into the site's form.

    Links of the reference lead to its generated pages, drawings and examples stand in the page, and
    files outside the documentation are named. Papers are links, and a number of a table is on one
    line with its spread or interval.
    """
    path = page.file.src_uri
    if path == "reference/index.md":
        titles = re.compile(rf"(?<=[|,] )({'|'.join(_titles)})(?= \||,)")
        markdown = titles.sub(lambda found: f"[{found[1]}]({_titles[found[1]]})", markdown)
    markdown = _REFERENCE.sub(lambda found: f"reference/{_find_place(found[1], path)})", markdown)
    markdown = _DRAWING.sub(lambda found: _draw(found[1]), markdown)
    markdown = _EXAMPLE.sub(
        lambda found: f"```python\n{(_ROOT / found[1]).read_text('utf-8')}```", markdown
    )
    outside = r"\[[^\]]*\]\(" + r"\.\./" * (path.count("/") + 1) + r"([^)]+)\)"
    markdown = re.sub(outside, r"`\1`", markdown)
    linked = PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", markdown)
    return _ROW.sub(lambda row: _SPREAD.sub("\N{NO-BREAK SPACE}", row[0]), linked)


def _find_place(anchor: str, path: str) -> str:
    if anchor not in _places:
        raise PluginError(f"{path}: the reference has no {anchor!r}")
    return _places[anchor]


def _draw(path: str) -> str:
    drawing = (_ROOT / "docs" / path).read_text("utf-8")
    return f'<div class="drawing">\n{_STYLE.sub("", drawing)}\n</div>'


def on_post_build(config: Any) -> None:
    """Refuse a site of which a page or a style loads something from another server."""
    site = Path(config.site_dir)
    files = [file for ending in ("*.html", "*.css") for file in site.rglob(ending)]
    found = [file for file in files if _LOADED.search(file.read_text("utf-8"))]
    if found:
        names = ", ".join(str(file.relative_to(site)) for file in found[:5])
        raise PluginError(f"these load something from another server: {names}")

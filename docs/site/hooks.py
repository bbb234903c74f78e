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


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages of the reference to those that are written by hand."""
    plugins = load_plugins(block=())
    pages = {**component_pages(plugins), **name_pages(plugins)}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Make a link of every paper, and keep a number of a table on one line with its spread or interval."""
    linked = PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", markdown)
    return _ROW.sub(lambda row: _SPREAD.sub("\N{NO-BREAK SPACE}", row[0]), linked)


def on_post_build(config: Any) -> None:
    """Refuse a site of which a page or a style loads something from another server."""
    site = Path(config.site_dir)
    files = [file for ending in ("*.html", "*.css") for file in site.rglob(ending)]
    found = [file for file in files if _LOADED.search(file.read_text("utf-8"))]
    if found:
        names = ", ".join(str(file.relative_to(site)) for file in found[:5])
        raise PluginError(f"these load something from another server: {names}")

"""A comparison of two models by one command line, which shows a table and writes files with all numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from emberge.contracts import Machine, Model, ModelRef, Page
from emberge.files import write_json, write_text
from emberge.merging import compare_weights
from emberge.plugins import Plugins
from emberge.recipes import locate_model, name_here


@dataclass(frozen=True)
class DiffRequest:
    """The comparison that one command line describes: references of the models, and the files to write."""

    first: str
    second: str
    base: str | None = None
    json: Path | None = None
    page: Path | None = None


def run_one_diff(wanted: DiffRequest, plugins: Plugins, machine: Machine) -> Iterator[str]:
    """Compare the models, write the files, and yield the lines for the terminal.

    Raises:
        PluginError: before any weight is read, if no plugin draws pages.
    """
    reporter = plugins.require("reporter", "--page") if wanted.page is not None else None
    models = _make_names_distinct([_find_model(text, plugins) for text in _list_references(wanted)])
    comparison = compare_weights(*models, machine=machine)
    remarks = comparison.remarks()
    yield comparison.title
    yield from comparison.table()
    yield from (f"note: {remark}" for remark in remarks)
    if wanted.json is not None:
        write_json(wanted.json, comparison.plain())
        yield f"written: {wanted.json}"
    if wanted.page is not None and reporter is not None:
        page = Page(f"{comparison.first} and {comparison.second}", remarks, comparison.figures())
        write_text(wanted.page, reporter.draw_page(page))
        yield f"written: {wanted.page}"


def _list_references(request: DiffRequest) -> list[str]:
    return [text for text in (request.first, request.second, request.base) if text is not None]


def _find_model(text: str, plugins: Plugins) -> Model:
    """Find a model by its reference; a bare name that is a folder here means the folder."""
    located = locate_model(ModelRef(name_here(text)), plugins)
    return Model(located.name, located.folder, "", adapter=located.adapter)


def _make_names_distinct(models: list[Model]) -> list[Model]:
    """Return the models; if two names are equal, all models are named by their folders' paths."""
    names = [model.name for model in models]
    if len(set(names)) == len(names):
        return models
    return [
        Model(str(m.adapter or m.folder), m.folder, m.fingerprint, adapter=m.adapter)
        for m in models
    ]

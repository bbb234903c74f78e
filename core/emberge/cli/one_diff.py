"""A comparison of two models by one command line, which shows a table and writes a file with all numbers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from emberge.contracts import Machine, Model, ModelRef
from emberge.files import write_json
from emberge.merging import compare_weights
from emberge.plugins import Plugins
from emberge.recipes import locate_model, name_here


def run_one_diff(options: argparse.Namespace, plugins: Plugins, machine: Machine) -> Iterator[str]:
    """Compare the models of a command line, write its file, and yield the lines for the terminal."""
    references = [options.first, options.second, *([options.base] if options.base else [])]
    models = _make_names_distinct([_find_model(text, plugins) for text in references])
    comparison = compare_weights(*models, machine=machine)
    yield comparison.title
    yield from comparison.table()
    yield from (f"note: {remark}" for remark in comparison.remarks())
    if options.json is not None:
        write_json(options.json, comparison.plain())
        yield f"written: {options.json}"


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

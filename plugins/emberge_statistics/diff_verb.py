"""The verb `diff`: a table of how the weights of two models differ."""

from __future__ import annotations

import argparse

from emberge import Model, ModelRef, Plugins
from emberge.devices import find_machine
from emberge.recipes import complete_reference, locate_model

from emberge_statistics.compare_weights import compare_weights


def run_diff(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the comparison of the models that a command line names: the verb `diff`."""
    references = [options.first, options.second, *([options.base] if options.base else [])]
    models = _make_names_distinct([_find_model(text, plugins) for text in references])
    machine = find_machine(options.devices, options.workers, options.memory)
    comparison = compare_weights(*models, machine=machine)
    notes = [f"note: {remark}" for remark in comparison.list_remarks()]
    print("\n".join([comparison.title, *comparison.table(), *notes]))
    return 0


def _find_model(text: str, plugins: Plugins) -> Model:
    """Find a model by its reference; a bare name that is a folder here means the folder."""
    located = locate_model(ModelRef(complete_reference(text)), plugins)
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

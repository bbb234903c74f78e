"""Comparison of the adapters of one merge, from configs and headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from emberge.errors import EmbergeError, Problem
from emberge.merging.adapters.adapter_reader import Adapter, read_adapter
from emberge.merging.adapters.base_match import doubt
from emberge.merging.request import MergeInput

__all__ = ["compare_adapters"]


def compare_adapters(models: Iterable[MergeInput]) -> tuple[list[Problem], list[str]]:
    """Return (problems, warnings) of adapters beside each other, without those of one alone."""
    found: list[tuple[MergeInput, Adapter]] = []
    for model in models:
        try:
            adapter = read_adapter(model.adapter, whole=False) if model.adapter else None
        except EmbergeError:
            continue
        if adapter is not None:
            found.append((model, adapter))
    warnings = [
        doubt(adapter.config, adapter.metadata, model.folder)
        for model, adapter in found
        if model.folder is not None
    ]
    faults = [*_saved(found), *_bases(found)]
    return faults, list(dict.fromkeys(warning for warning in warnings if warning))


def _saved(found: list[tuple[MergeInput, Adapter]]) -> Iterator[Problem]:
    saved = {model.name: set(adapter.config.saved_modules) for model, adapter in found}
    first = next(iter(saved), "")
    for name, modules in saved.items():
        if modules != saved[first]:
            yield Problem(
                f"'{first}' saves {_listed(saved[first])} whole (modules_to_save) and '{name}' "
                f"{_listed(modules)}; train them alike, or fold each into its base by a merge of its own "
                "and merge the results"
            )
            return


def _bases(found: list[tuple[MergeInput, Adapter]]) -> Iterator[Problem]:
    """Yield adapters of two bases on one folder, whose configs contradict each other."""
    bases: dict[object, tuple[str, str]] = {}
    for model, adapter in found:
        base = adapter.config.base
        if not base or model.folder is None:
            continue
        key = model.folder.resolve()
        first, theirs = bases.setdefault(key, (model.name, base))
        if base.rpartition("/")[2].lower() != theirs.rpartition("/")[2].lower():
            yield Problem(
                f"'{first}' is an adapter of '{theirs}' and '{model.name}' one of '{base}', and both are put "
                f"on {model.folder.name}; name for each the base that it was trained on"
            )
            return


def _listed(modules: set[str]) -> str:
    return ", ".join(sorted(modules)) or "no module"

"""Comparison of a merge's adapters with one another: the class that they fit, and their bases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from emberge.errors import EmbergeError, Problem
from emberge.merging.adapter_config import base_warning
from emberge.merging.adapter_reader import (
    AdaptedCheckpoint,
    Adapter,
    AdapterNames,
    count_rows,
    read_adapter,
)
from emberge.merging.request import MergeInput
from emberge.model_folder import Checkpoint


def _find_adapter(model: MergeInput) -> Adapter | None:
    """Return the adapter of a model; None if it has none, or one without weights yet."""
    if model.adapter is None:
        return None
    return read_adapter(Checkpoint(model.adapter).trunk, whole=False)


@dataclass(frozen=True)
class AdaptedClass:
    """The class that an adapter fits: its `prefix` before the names of the backbone, and peft's task type."""

    prefix: str = ""
    task: str | None = "FEATURE_EXTRACTION"
    remarks: tuple[str, ...] = ()

    @property
    def has_head(self) -> bool:
        """True for a class with a head, such as one for causal language models."""
        return bool(self.prefix) or self.task not in (None, "FEATURE_EXTRACTION")


def common_class(models: Iterable[MergeInput]) -> AdaptedClass:
    """Return the class that all adapters of a merge fit: that of each, or the backbone if they differ."""
    found: dict[AdaptedClass, str] = {}
    for model in models:
        adapter = _find_adapter(model)
        if adapter is not None and model.folder is not None:
            checkpoint = Checkpoint(model.folder)
            if checkpoint.has_weights:
                places = AdapterNames(checkpoint.names, checkpoint, "", "")
                for name in (*adapter.whole_tensors, *(f"{m}.weight" for m in adapter.modules)):
                    places.find_name(name)
                task = adapter.config.task or (None if places.prefix else AdaptedClass.task)
                found.setdefault(AdaptedClass(places.prefix, task), model.name)
    if len(found) < 2:
        return next(iter(found), AdaptedClass())
    names = " and ".join(f"'{name}' for {one.task}" for one, name in found.items())
    remark = f"{names}: adapters of different classes; the result fits the backbone (AutoModel)"
    return AdaptedClass(remarks=(remark,))


def compare_adapters(models: Iterable[MergeInput]) -> tuple[list[Problem], list[str]]:
    """Return (problems, warnings) from comparing the adapters of a merge with one another."""
    adapters: list[tuple[MergeInput, Adapter]] = []
    for model in models:
        try:
            adapter = _find_adapter(model)
        except EmbergeError:
            continue
        if adapter is not None and model.folder is not None:
            adapters.append((model, adapter))
    warnings = [
        base_warning(adapter.config, adapter.metadata, model.folder)
        for model, adapter in adapters
        if model.folder is not None
    ]
    warnings += [_warn_of_rows(model) for model, _ in adapters]
    faults = list(_check_bases(adapters))
    return faults, list(dict.fromkeys(warning for warning in warnings if warning))


def _warn_of_rows(model: MergeInput) -> str | None:
    """Return a warning of an adapter that adds rows to the embedding and brings no tokenizer for them."""
    assert model.folder is not None
    assert model.adapter is not None
    checkpoint = AdaptedCheckpoint(model.folder, model.adapter)
    if not checkpoint.has_weights or checkpoint.adapter.has_tokenizer:
        return None
    old, new = (count_rows(one) for one in (checkpoint.base.names, checkpoint.names))
    if new <= old:
        return None
    return (
        f"'{model.name}' has {new} rows of the embedding and its base {old}; if the others are trained "
        f"tokens, put the tokenizer that has them into {model.adapter}"
    )


def _check_bases(found: list[tuple[MergeInput, Adapter]]) -> Iterator[Problem]:
    """Yield a problem for adapters applied to one base folder whose configs name different bases."""
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

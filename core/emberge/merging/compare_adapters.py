"""Adapters of a merge: the class that all of them fit, and warnings of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from emberge.errors import EmbergeError
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


def adapter_warnings(models: Iterable[MergeInput]) -> list[str]:
    """Return warnings of adapters that may be of other bases, or add rows without a tokenizer for them."""
    warnings: list[str | None] = []
    for model in models:
        with suppress(EmbergeError):  # whoever opens the model raises it
            adapter = _find_adapter(model)
            if adapter is not None and model.folder is not None:
                warnings.append(base_warning(adapter.config, adapter.metadata, model.folder))
                warnings.append(_warn_of_rows(model))
    return list(dict.fromkeys(warning for warning in warnings if warning))


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

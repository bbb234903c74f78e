"""The class of models that a merged adapter fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from emberge.merging import AdapterNames, MergeInput, read_adapter
from emberge.model_folder import Checkpoint


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


def find_common_class(models: Iterable[MergeInput]) -> AdaptedClass:
    """Return the class that all adapters of a merge fit: that of each, or the backbone if they differ."""
    classes: dict[AdaptedClass, str] = {}
    for model in models:
        if model.folder is None or model.adapter is None:
            continue
        base, adapter = (
            Checkpoint(model.folder),
            read_adapter(Checkpoint(model.adapter).trunk, whole=False),
        )
        if adapter is None or not base.has_weights:
            continue
        names = AdapterNames(base.names, base, "", "")
        for name in (*adapter.whole_tensors, *(f"{module}.weight" for module in adapter.modules)):
            names.find_name(name)
        task = adapter.config.task or (None if names.prefix else AdaptedClass.task)
        classes.setdefault(AdaptedClass(names.prefix, task), model.name)
    if len(classes) < 2:
        return next(iter(classes), AdaptedClass())
    members = " and ".join(f"'{name}' for {one.task}" for one, name in classes.items())
    remark = f"{members}: adapters of different classes; the result fits the backbone (AutoModel)"
    return AdaptedClass(remarks=(remark,))

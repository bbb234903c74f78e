"""Whether models of a merge hold the very same weights, from a look at a few places of each tensor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.tensor_files.safetensors_header import TensorSpec

if TYPE_CHECKING:
    from emberge.merging.planning.plan_merge import MergePlan

__all__ = ["duplicate_models"]

_BASE = "the base"
# Bytes looked at in each of three places of a tensor; what is smaller than that is seen whole. Even where
# most numbers round to the same bfloat16, a few thousand in a row do not.
_LOOK = 4096


def duplicate_models(plan: MergePlan) -> Iterator[str]:
    """Warnings of models that count twice, and of such as differ from the base in nothing."""
    columns = _columns(plan)
    with _Files() as files:
        for first, second in combinations(columns, 2):
            if _same(columns[first], columns[second], files):
                yield _words(first, second)


def _words(first: str, second: str) -> str:
    if first == _BASE:
        return (
            f"'{second}' holds the same weights as the base, so that its changes are all zero; take it "
            "out unless you mean that"
        )
    same = f"'{first}' and '{second}' hold the same weights"
    return f"{same}, which count twice; take one out unless you mean that"


def _columns(plan: MergePlan) -> dict[str, list[TensorSpec]]:
    """The tensors that are merged, of the base and of each model that lies in files as it is."""
    merged = [tensor for tensor in plan.tensors if tensor.action == "merge"]
    named = {m.name: [t.sources[i] for t in merged] for i, m in enumerate(plan.request.inputs)}
    every = {_BASE: [tensor.base for tensor in merged], **named}
    return {
        name: [spec for spec in specs if spec is not None]
        for name, specs in every.items()
        if specs and all(spec is not None and type(spec) is TensorSpec for spec in specs)
    }


def _same(first: Sequence[TensorSpec], second: Sequence[TensorSpec], files: _Files) -> bool:
    return all(
        a.shape == b.shape and a.dtype == b.dtype and files.same(a, b)
        for a, b in zip(first, second, strict=True)
    )


class _Files(ExitStack):
    """Files that are open for a look."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[Path, int] = {}

    def same(self, first: TensorSpec, second: TensorSpec) -> bool:
        one, other = self._handle(first.file), self._handle(second.file)
        if os.path.sameopenfile(one, other) and first.offset == second.offset:
            return True
        size = min(_LOOK, first.nbytes)
        return all(
            os.pread(one, size, first.offset + at) == os.pread(other, size, second.offset + at)
            for at in dict.fromkeys((0, (first.nbytes - size) // 2, first.nbytes - size))
        )

    def _handle(self, path: Path) -> int:
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY)
            self.callback(os.close, self._open[path])
        return self._open[path]

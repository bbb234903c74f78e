"""Fingerprint of a batch plan, and the check of the names in its options."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from emberge.contracts import TASK_KINDS, Batch, DatasetInfo, PerDataset, Pool, Rows, Sampler
from emberge.errors import DataError, suggest
from emberge.training.plan.lazy_rows import in_pieces


def refuse_unknown_names(options: Mapping[str, Any], infos: Iterable[DatasetInfo]) -> None:
    """Refuse unknown datasets or tasks in options; `options` maps an option's name in messages to its value.

    Raises:
        DataError: if a name does not exist; has the option, the name, and the nearest existing name.
    """
    datasets = [info.name for info in infos]
    for label, option in options.items():
        if isinstance(option, PerDataset):
            for fault in option.find_unknown(label, datasets):
                raise DataError(fault)
            for task in option.by_task:
                if task not in TASK_KINDS:
                    hint = suggest(task, TASK_KINDS) or f"; there are {', '.join(TASK_KINDS)}"
                    raise DataError(
                        f"{label}: by_task names '{task}', which is no kind of task{hint}"
                    )


def list_sampler_options(samplers: Sequence[Sampler]) -> dict[str, Any]:
    """Return every option of the samplers, by its name in messages, "option of sampler Name"."""
    return {
        f"{field.name} of sampler {type(sampler).__name__}": getattr(sampler, field.name)
        for sampler in samplers
        for field in dataclasses.fields(sampler)
    }


def manifest(pool: Pool, samplers: Sequence[Sampler], **more: Any) -> dict[str, Any]:
    """Return plain data that is unique to a plan: datasets, rows, samplers and their options."""
    data = [
        [i.name, i.task, i.size, i.weight, _describe_rows(rows), *_describe_dataset(i)]
        for i, rows in pool.items()
    ]
    return {"data": data, "samplers": [plain(sampler) for sampler in samplers], **plain(more)}


def _describe_dataset(info: DatasetInfo) -> list[str]:
    """Return the dataset's own rule for negatives and its number of tokens, if it has them."""
    extra: list[str] = [] if info.negatives == "auto" else [info.negatives]
    return extra if info.tokens is None else [*extra, f"{int(info.tokens.sum())} tokens"]


def _describe_rows(rows: Rows) -> Any:
    if isinstance(rows, range):
        return [rows.start, rows.stop, rows.step]
    digest = hashlib.sha256()
    for piece in in_pieces(rows):
        digest.update(piece.astype("<i8").tobytes())
    return digest.hexdigest()


def plain(value: Any) -> Any:
    """Return options as JSON values, a component with its class's name and revision.

    Modules are not named, so that code may move without restarting users' trainings.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"is": type(value).__name__, "revision": getattr(value, "revision", 1), **fields}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def digest_batch(batch: Batch) -> Iterator[bytes]:
    """Yield a batch as bytes."""
    yield repr((batch.stage, batch.negatives, [part.dataset for part in batch.parts])).encode()
    for part in batch.parts:
        yield np.ascontiguousarray(part.rows, dtype="<i8").tobytes()

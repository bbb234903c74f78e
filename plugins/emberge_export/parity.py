"""Comparison of exported files with torch, each in its own runtime: cosine, nDCG@10, speed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from emberge import CheckpointError
from emberge.model_folder import Checkpoint, is_static_model
from emberge.numerics import ndcg, nearest_rows, row_cosines
from numpy.typing import NDArray

from emberge_export.probe import Probe
from emberge_export.programs import Exporting
from emberge_export.static_export import StaticExporting

Array = NDArray[np.float64]
# A measurement of fewer texts is mostly one of starting.
_TIMED = 256


@dataclass(frozen=True)
class Parity:
    """Figures of one file: size, similarity to torch, and speed in wall and CPU time."""

    file: str
    megabytes: float
    cosine: float
    least_cosine: float
    ndcg_at_10: float | None
    texts_per_second: float
    texts_per_cpu_second: float


def measured(
    folder: Path,
    files: Mapping[str, str],
    probe: Probe,
    *,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> dict[str, Parity]:
    """Export a folder's model into files below the folder, and return the figures of torch and each file.

    `files` are paths by format.

    Raises:
        CheckpointError: if the model cannot be exported, or embeddings are not finite.
    """
    exporting = StaticExporting(folder) if is_static_model(folder) else Exporting(folder)
    torch_embeddings, speed = _measure_run(exporting.model, probe)
    require_finite(torch_embeddings, f"{folder}: the model")
    weights = Checkpoint(folder).weight_bytes
    figures = {
        "torch": _build_figures(
            "model.safetensors", weights, torch_embeddings, torch_embeddings, probe, speed
        )
    }
    for number, (name, file) in enumerate(files.items()):
        progress(number, len(files), name)
        size = exporting.write(name, folder / file)
        with exporting.load(folder / file) as exported:
            embedded, speed = _measure_run(exported, probe)
        require_finite(embedded, f"{folder}: its export as {name}")
        figures[name] = _build_figures(file, size, embedded, torch_embeddings, probe, speed)
    return figures


def require_finite(embedded: Mapping[str, Array], embedding_source: str) -> None:
    """Refuse embeddings with NaN or infinite values.

    Raises:
        CheckpointError: if they have; the message has `embedding_source`, the source of the embeddings.
    """
    invalid_count = sum(int((~np.isfinite(rows).all(axis=1)).sum()) for rows in embedded.values())
    if invalid_count:
        raise CheckpointError(
            f"{embedding_source} gives {invalid_count:,} of {sum(map(len, embedded.values())):,} texts "
            "embeddings that are not "
            "finite; leave out the format whose numbers are too small for it, or mend the model"
        )


def time_call(run: Callable[[], object]) -> tuple[float, float]:
    """Run a function and return the seconds of wall time, and of CPU time of all threads, both above 0."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return max(wall, 1e-9), max(cpu, 1e-9)


def _measure_run(model: Any, probe: Probe) -> tuple[dict[str, Array], tuple[float, float]]:
    """Return (document embeddings, query embeddings, texts per second of wall time, and of CPU time)."""
    documents, queries = list(probe.documents.values()), list(probe.queries.values())
    with torch.inference_mode():
        embeddings = {"documents": np.asarray(model.encode_document(documents), np.float64)}
        if queries:
            embeddings["queries"] = np.asarray(model.encode_query(queries), np.float64)
        timed = (documents * math.ceil(_TIMED / len(documents)))[:_TIMED]
        wall, cpu = time_call(lambda: model.encode_document(timed))
    return embeddings, (len(timed) / wall, len(timed) / cpu)


def _build_figures(
    file: str,
    size: int,
    embedded: Mapping[str, Array],
    torch_embeddings: Mapping[str, Array],
    probe: Probe,
    speed: tuple[float, float],
) -> Parity:
    nearness = np.concatenate(
        [_compare_rows(embedded[kind], torch_embeddings[kind]) for kind in torch_embeddings]
    )
    return Parity(
        file=file,
        megabytes=round(size / 1e6, 2),
        cosine=round(float(nearness.mean()), 6),
        least_cosine=round(float(nearness.min()), 6),
        ndcg_at_10=round(mean_ndcg(embedded, probe), 4) if probe.relevant else None,
        texts_per_second=round(speed[0], 1),
        texts_per_cpu_second=round(speed[1], 1),
    )


def _compare_rows(embedded: Array, torch_embedded: Array) -> Array:
    """Return the cosine of each row with torch's; 1 if both are zeros, as of a text without known tokens."""
    both_zero = ~embedded.any(axis=1) & ~torch_embedded.any(axis=1)
    return np.where(both_zero, 1.0, row_cosines(embedded, torch_embedded))


def mean_ndcg(embedded: Mapping[str, Array], probe: Probe) -> float:
    """Return the mean nDCG@10 of the probe's queries under these embeddings."""
    nearest_documents = nearest_rows(embedded["queries"], embedded["documents"], 10)
    columns = {name: column for column, name in enumerate(probe.documents)}
    grades = [
        {columns[name]: grade for name, grade in probe.relevant[query].items()}
        for query in probe.queries
    ]
    return ndcg(nearest_documents, grades)

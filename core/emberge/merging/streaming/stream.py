"""Streaming of jobs into a checkpoint's weights, in bounded memory, on threads.

Tensors are measured in granules that only their shape decides, and measures are summed in granule order,
each on one thread: how many workers there are, and how much memory, cannot show in the bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from emberge.files import sync_tree, writing
from emberge.merging.streaming.jobs import CopyJob, MergeJob, TensorJob, announce
from emberge.merging.streaming.journal import Journal
from emberge.merging.streaming.memory_budget import queue_bytes
from emberge.merging.streaming.scheduler import Limits, Progress, by_unit, run_jobs
from emberge.tensor_files import TensorWriter

__all__ = ["CopyJob", "Limits", "MergeJob", "TensorJob", "run_jobs", "stream"]


def stream(
    jobs: Sequence[TensorJob],
    path: Path,
    *,
    key: str = "",
    limits: Limits | None = None,
    writer: Callable[[Path], TensorWriter] | None = None,
    progress: Progress | None = None,
    complete: Callable[[Path], None] | None = None,
) -> Path:
    """Run the jobs and write their tensors into the folder `path`, which may have a killed run's part.

    `key` identifies the work: a part that was begun under another key is deleted. The caller
    publishes the folder. `writer` makes the writer, for other names of files, shards or metadata;
    `complete` adds to the folder what is not weights, while a kill still costs no more than that.

    Raises:
        CheckpointError: for inputs that are damaged or not finite, and for a full disk.
    """
    specs = [job.spec for job in jobs]
    plan = [(s.name, list(s.shape), s.dtype) for s in specs]
    # Another release of torch may round otherwise: what one began the other does not go on with.
    work = json.dumps([key, plan, torch.__version__])
    journal = Journal(path, hashlib.sha256(work.encode()).hexdigest())
    files = writer(path) if writer else TensorWriter(path, specs, {})
    if journal.done and not files.resumed:
        journal.forget()
    limits = limits or Limits()
    files.begin(queue_bytes(limits.memory))
    left = [job for job in jobs if job.spec.name not in journal.done]
    for job in jobs:
        job.remarks.update(journal.remarks.get(job.spec.name, {}))
    units = {job.unit for job in left}
    to_read = {unit: members for unit, members in by_unit(jobs).items() if unit in units}
    end_reading = announce([job for members in to_read.values() for job in members])
    try:
        run_jobs(
            left,
            lambda job, start, piece: files.write(job.spec.name, start, piece),
            limits=limits,
            finished=lambda job: files.after_writes(
                lambda: journal.mark(job.spec.name, files.sync, job.remarks)
            ),
            progress=progress,
            units=to_read,
            failed=end_reading,
        )
        files.finish()
    finally:
        files.close()
    with writing(path, "the result"):
        if complete is not None:
            complete(path)
        sync_tree(path, skipped=".safetensors")  # weights are there since they were finished
        journal.remove()
    return path

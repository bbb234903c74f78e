"""Building of a complete model folder from jobs and a template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from emberge.contracts.step import Machine
from emberge.files.atomic import publish, require_free
from emberge.files.disk_space import writing
from emberge.files.locks import working_in
from emberge.merging.streaming.jobs import TensorJob
from emberge.merging.streaming.scheduler import Limits, Progress
from emberge.merging.streaming.stream import stream
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.copy_template import copy_template
from emberge.tensor_files.safetensors_header import main_dtype
from emberge.tensor_files.tensor_writer import TensorWriter
from emberge.wording import parse_size

__all__ = ["build_checkpoint"]


def build_checkpoint(
    jobs: Sequence[TensorJob],
    out: Path,
    template: Checkpoint,
    *,
    key: str,
    metadata: Mapping[str, str] | None = None,
    max_shard_size: str | int = "5GB",
    tokenizer: Path | None = None,
    machine: Machine | None = None,
    side: Path | None = None,
    progress: Progress | None = None,
    complete: Callable[[Path], None] | None = None,
) -> None:
    """Run the jobs and publish their tensors at `out` as a model folder with all else of the template.

    Until `out` appears by one rename, the work is done in the folder `side` (default: a hidden folder beside
    it), from which a killed run continues; `key` identifies the work, and jobs of another key start over.
    `metadata` goes into the files' headers; `tokenizer` is a folder whose tokenizer replaces the template's;
    `complete` changes the folder's other files before it is published.

    Raises:
        CheckpointError: for an occupied `out`, inputs that are damaged or not finite, and a full disk;
            nothing is left at `out`.
    """
    require_free(out)
    parse_size(max_shard_size)
    side = side or out.parent / f".{out.name}.partial"
    specs = [job.spec for job in jobs]

    def writer(folder: Path) -> TensorWriter:
        return TensorWriter(folder, specs, metadata or {}, max_shard_size, template.parts)

    def add_other_files(folder: Path) -> None:
        copy_template(template, folder, dtype=main_dtype(specs), tokenizer=tokenizer)
        if complete is not None:
            complete(folder)

    with working_in(side):
        stream(
            jobs,
            side,
            key=key,
            limits=Limits.of(machine or Machine()),
            writer=writer,
            progress=progress,
            complete=add_other_files,
        )
        require_free(out)
        with writing(out, "the result"):
            publish(side, out)

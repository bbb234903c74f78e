"""Building of a complete model folder: jobs write its weights, all other files come from a template.

Tensors are measured in granules, which only the tensor's shape decides, and measures are summed in the
granules' order, each on one thread. The number of workers and the size of memory therefore cannot change the
bytes. A killed run continues by its journal.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from emberge.contracts import Machine, Workspace
from emberge.errors import CheckpointError
from emberge.files import (
    publish,
    require_space,
    sync_tree,
    working_in,
    write_json,
    write_text,
    writing,
)
from emberge.hashes import hash_value
from emberge.merging.streaming.jobs import CopyJob, TensorJob
from emberge.merging.streaming.journal import Journal
from emberge.merging.streaming.scheduler import (
    Progress,
    SchedulerLimits,
    count_queue_bytes,
    run_jobs,
)
from emberge.merging.template_checks import describe_template_problems
from emberge.model_folder import Checkpoint, copy_template
from emberge.tensor_files import (
    SHARD_BYTES,
    FileSource,
    TensorReader,
    TensorSpec,
    TensorWriter,
    build_header_texts,
    find_main_dtype,
)

# Room for a model's configs and tokenizer, in addition to its weights.
_OTHER_FILES_BYTES = 1 << 20
Content = Mapping[str, Any] | list[Any] | str
"""New content of a file: an object or a list, which is written as JSON, or the text itself."""


def write_tensors(
    jobs: Sequence[TensorJob],
    path: Path,
    *,
    key: str = "",
    limits: SchedulerLimits | None = None,
    metadata: Mapping[str, str] | None = None,
    max_shard_size: int = SHARD_BYTES,
    folder_by_prefix: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    complete: Callable[[Path], None] | None = None,
) -> None:
    """Run the jobs and write their tensors into the folder `path`, continuing the part of a killed run.

    `key` identifies the work: a part that was begun with another key is deleted. The caller publishes the
    folder. `metadata`, `max_shard_size` and `folder_by_prefix` are those of a TensorWriter. `complete` adds
    all files that are not weights; after a kill during `complete`, only `complete` is repeated.

    Raises:
        CheckpointError: if inputs are damaged or not finite, or the disk is full.
    """
    specs = [job.spec for job in jobs]
    plan = [(s.name, list(s.shape), s.dtype) for s in specs]
    # Another release of torch may round otherwise, so it does not continue the work of this one.
    work = json.dumps([key, plan, version("torch")])
    journal = Journal(path, hashlib.sha256(work.encode()).hexdigest())
    files = TensorWriter(path, specs, metadata or {}, max_shard_size, folder_by_prefix)
    if journal.done and not files.resumed:
        journal.forget()
    limits = limits or SchedulerLimits()
    for job in jobs:
        job.remarks.update(journal.remarks.get(job.spec.name, {}))
    try:
        files.begin(count_queue_bytes(limits.memory))
        run_jobs(
            jobs,
            lambda job, start, piece: files.write(job.spec.name, start, piece),
            limits=limits,
            finished=lambda job: files.run_after_writes(
                lambda: journal.mark(job.spec.name, files.sync, job.remarks)
            ),
            progress=progress,
            done=journal.done,
        )
        files.finish()
        journal.flush(files.sync)
    finally:
        files.close()
    with writing(path, "the result"):
        if complete is not None:
            complete(path)
        sync_tree(path)
        journal.path.unlink()


def build_checkpoint(
    jobs: Sequence[TensorJob],
    out: Path,
    *,
    template: Checkpoint,
    key: str,
    files: Mapping[str, Content] | None = None,
    provenance: Mapping[str, Any] | None = None,
    side_folder: Path | None = None,
    machine: Machine | None = None,
    max_shard_size: int = SHARD_BYTES,
    tokenizer: Path | None = None,
    progress: Progress | None = None,
    complete: Callable[[Path], None] | None = None,
) -> None:
    """Run the jobs and publish their tensors at `out`, with all other files from the template.

    There is one job per written tensor; several jobs may copy one tensor under different names. A name that
    begins with a module's folder (`2_Dense.linear.weight`) goes to that module's file.

    The template gives configs, tokenizer, modules and licences. `files` changes some of them or adds others,
    by path in the folder (`template.locate_in_trunk("config.json")`); the transformer's config also gets the
    weights' dtype. `tokenizer` is a folder whose tokenizer replaces the template's, and `complete` changes
    the finished folder's other files as the last action. `provenance` is written into the headers, as in a
    merge: in a step `{"emberge": workspace.provenance}`.

    `key` is text that decides the tensors' bytes: the options, and the content of the sources
    (`model.fingerprint`). Until `out` appears by one rename, the work is done in `side_folder` (default: a
    hidden folder next to `out`), from which a killed build of the same key continues. The `machine` changes
    no byte.

    Raises:
        CheckpointError: before anything is written, if `out` is occupied, two jobs have one name, or the disk
            is too small; later, if inputs are damaged or not finite. Nothing is left at `out`.
    """
    require_free(out)
    side_folder = side_folder or out.parent / f".{out.name}.partial"
    specs = [job.spec for job in jobs]
    names = Counter(spec.name for spec in specs)
    problems = [f"{name}: {count} jobs make it" for name, count in names.items() if count > 1]
    has_new_config = template.locate_in_trunk("config.json") in (files or {})
    problems += describe_template_problems(template, config=not has_new_config)
    if problems:
        raise CheckpointError("\n".join(problems))
    size = sum(spec.nbytes for spec in specs) + _OTHER_FILES_BYTES
    require_space(out.parent, size, begun=side_folder)

    def add_other_files(folder: Path) -> None:
        _write_files(template, folder, specs, tokenizer, files or {})
        if complete is not None:
            complete(folder)

    with working_in(side_folder):
        write_tensors(
            jobs,
            side_folder,
            key=key,
            limits=SchedulerLimits.of(machine or Machine()),
            metadata=build_header_texts(provenance or {}),
            max_shard_size=max_shard_size,
            folder_by_prefix=template.folder_by_prefix,
            progress=progress,
            complete=add_other_files,
        )
        require_free(out)
        with writing(out, "the result"):
            # In a recipe `out` is the step's `output`, which `run_step` publishes.
            publish(side_folder, out)


def build_result(
    workspace: Workspace,
    tensors: Iterable[TensorSpec],
    *,
    template: Checkpoint,
    key: object,
    models: Mapping[str, str] | None = None,
    files: Mapping[str, Content] | None = None,
    complete: Callable[[Path], None] | None = None,
    out: Path | None = None,
) -> None:
    """Write tensors, copied or computed, and the template's other files as a step's result.

    `key` is a JSON value that decides the tensors' bytes. `models` maps a tensor's name to the name, for
    messages, of the model that it is read from, by default the template. `out` is the folder to write, by
    default the step's result, otherwise such as a folder of the run's store; what is not finished is in the
    step's work folder. For the other options and the errors see `build_checkpoint`.
    """
    label = template.folder.name
    side_folder = workspace.work / ("result" if out is None else f"{out.name}.partial")

    def copy(tensor: TensorSpec, reader: TensorReader) -> CopyJob:
        model = label if models is None else models[tensor.name]
        written = TensorSpec(tensor.name, tensor.shape, tensor.dtype)
        return CopyJob(written, FileSource(model, tensor, reader))

    with TensorReader() as reader:
        build_checkpoint(
            [copy(tensor, reader) for tensor in tensors],
            out or workspace.folder,
            template=template,
            key=hash_value(key),
            files=files,
            provenance={"emberge": workspace.provenance},
            side_folder=side_folder,
            machine=workspace.machine,
            progress=lambda done, total, name: workspace.progress(done, total, "bytes", name),
            complete=complete,
        )


def require_free(path: Path) -> None:
    """Refuse a `path` that exists, unless it is an empty folder.

    Raises:
        CheckpointError: if it exists.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path}: exists already; remove it or choose another folder")


def _write_files(
    template: Checkpoint,
    folder: Path,
    specs: Sequence[TensorSpec],
    tokenizer: Path | None,
    files: Mapping[str, Content],
) -> None:
    """Write all files but the weights: those of the template, and the changed and added ones."""
    config_name = template.locate_in_trunk("config.json")
    config = files.get(config_name)
    config = config if isinstance(config, Mapping) else None
    copy_template(
        template, folder, dtype=find_main_dtype(specs), tokenizer=tokenizer, config=config
    )
    for name, content in files.items():
        if name == config_name and config is not None and template.config:
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            write_text(path, content, durable=False)
        else:
            write_json(path, content, durable=False)

"""Building of a complete model folder from jobs and a template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from emberge.contracts import Machine, Workspace
from emberge.errors import CheckpointError
from emberge.files import (
    disk_space_problems,
    publish,
    working_in,
    write_json,
    write_text,
    writing,
)
from emberge.hashes import stable_hash
from emberge.merging.streaming.jobs import CopyJob, TensorJob
from emberge.merging.streaming.scheduler import Limits, Progress
from emberge.merging.streaming.stream import stream
from emberge.model_folder import Checkpoint, copy_template, template_faults
from emberge.tensor_files import (
    FileSource,
    TensorReader,
    TensorSpec,
    TensorWriter,
    header_texts,
    main_dtype,
)
from emberge.wording import parse_size

Content = Mapping[str, Any] | list[Any] | str
"""New content of a file: an object or a list, which is written as JSON, or the text itself."""


def build_checkpoint(
    jobs: Sequence[TensorJob],
    out: Path,
    *,
    template: Checkpoint,
    key: str,
    files: Mapping[str, Content] | None = None,
    provenance: Mapping[str, Any] | None = None,
    side: Path | None = None,
    machine: Machine | None = None,
    max_shard_size: str | int = "5GB",
    tokenizer: Path | None = None,
    progress: Progress | None = None,
    complete: Callable[[Path], None] | None = None,
) -> None:
    """Run the jobs and publish their tensors at `out` as a model folder with all else of the template.

    A job a tensor, of any kind: a `CopyJob` moves one tensor's bytes, from a file or from a tensor that is
    computed while it is read (`DerivedTensor`), under the name of its `spec`; several may copy one tensor. A
    name that begins with a module's folder (`2_Dense.linear.weight`) goes to that module's file.

    The template gives configs, tokenizer, modules and licences. `files` changes some of them or adds others,
    by path in the folder (`template.in_trunk("config.json")`); the transformer's config also gets the
    weights' dtype. `tokenizer` is a folder whose tokenizer replaces the template's, and `complete` changes
    the finished folder's other files at last. `provenance` goes into the headers, as in a merge: in a step
    `{"emberge": workspace.provenance}`.

    `key` is text that decides the tensors' bytes: the options, and the content of the sources
    (`model.fingerprint`). Until `out` appears by one rename, the work is done in the folder `side` (default:
    a hidden folder beside it), from which a killed build of the same key continues, to the same bytes.
    Devices, workers and memory are the `machine`'s, and show in no byte.

    Raises:
        CheckpointError: for an occupied `out`, two jobs of one name, a copy of another shape or dtype, a
            path in `files` that leads elsewhere, and a disk too small, before anything is written; for inputs
            that are damaged or not finite. Nothing is left at `out`.
    """
    require_free(out)
    side = side or out.parent / f".{out.name}.partial"
    specs = [job.spec for job in jobs]
    limit = parse_size(max_shard_size)
    problems = [*_job_problems(jobs), *_file_problems(files or {})]
    own_config = template.in_trunk("config.json") in (files or {})
    problems += template_faults(template, config=not own_config)
    problems += map(str, disk_space_problems(sum(spec.nbytes for spec in specs), out.parent, side))
    if problems:
        raise CheckpointError("\n".join(problems))
    header = header_texts(provenance or {})

    def writer(folder: Path) -> TensorWriter:
        return TensorWriter(folder, specs, header, limit, template.parts)

    def add_other_files(folder: Path) -> None:
        _write_files(template, folder, specs, tokenizer, files or {})
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


def build_result(
    workspace: Workspace,
    tensors: Iterable[TensorSpec],
    *,
    template: Checkpoint,
    key: object,
    models: Mapping[str, str] | None = None,
    files: Mapping[str, Content] | None = None,
    complete: Callable[[Path], None] | None = None,
) -> None:
    """Write the tensors, copied or computed, and the template's other files as the result of a step.

    `key` is a JSON value that decides the tensors' bytes. `models` names in messages the model that each
    tensor is read from, by the tensor's name; it is the template without it. For the other options and what
    is raised see `build_checkpoint`.
    """
    label = template.folder.name

    def copy(tensor: TensorSpec, reader: TensorReader) -> CopyJob:
        model = label if models is None else models[tensor.name]
        written = TensorSpec(tensor.name, tensor.shape, tensor.dtype)
        return CopyJob(written, FileSource(model, tensor, reader))

    with TensorReader() as reader:
        build_checkpoint(
            [copy(tensor, reader) for tensor in tensors],
            workspace.folder,
            template=template,
            key=stable_hash(key),
            files=files,
            provenance={"emberge": workspace.provenance},
            side=workspace.work / "result",
            machine=workspace.machine,
            progress=lambda done, total, name: workspace.progress(done, total, "bytes", name),
            complete=complete,
        )


def require_free(path: Path) -> None:
    """Make sure that nothing is at `path` but perhaps an empty folder.

    Raises:
        CheckpointError: when something is.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path}: exists already; remove it or choose another folder")


def _job_problems(jobs: Sequence[TensorJob]) -> Iterator[str]:
    names = Counter(job.spec.name for job in jobs)
    yield from (f"{name}: {count} jobs make it" for name, count in names.items() if count > 1)
    yield from (f"{job.spec.name}: {job.problem}" for job in jobs if job.problem)


def _file_problems(files: Mapping[str, Content]) -> Iterator[str]:
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.name:
            yield f"{name}: is no path inside a model folder; name a file in it"
        elif name.endswith((".safetensors", ".safetensors.index.json")):
            yield f"{name}: is a file of weights, which the jobs write; choose another name"


def _write_files(
    template: Checkpoint,
    folder: Path,
    specs: Sequence[TensorSpec],
    tokenizer: Path | None,
    files: Mapping[str, Content],
) -> None:
    """Write all but the weights: what the template gives, and what is changed of it or added."""
    own = template.in_trunk("config.json")
    config = files.get(own)
    config = config if isinstance(config, Mapping) else None
    copy_template(template, folder, dtype=main_dtype(specs), tokenizer=tokenizer, config=config)
    for name, content in files.items():
        if name == own and config is not None and template.config:
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            write_text(path, content, durable=False)
        else:
            write_json(path, content, durable=False)

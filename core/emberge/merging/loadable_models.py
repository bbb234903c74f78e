"""Models for steps that open folders: adapters applied to the base, weights checked; loads no torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from emberge.contracts import Machine, Model
from emberge.errors import EmbergeError
from emberge.merging.adapter_reader import open_model
from emberge.merging.apply_adapter import AdaptedSpec
from emberge.merging.request import MergeInput
from emberge.merging.template_checks import describe_size_problems, describe_template_problems
from emberge.model_folder import describe_other_format
from emberge.tensor_files import DerivedTensor, TensorSpec
from emberge.tensor_names import TensorNames, is_buffer

_ADAPTED_DTYPE = "float32"


def describe_loading_problems(folder: Path, adapter: Path | None) -> Sequence[str]:
    """List reasons why the model in `folder`, with an adapter applied, cannot be opened.

    Only headers and configs are read. For a folder without weights only the files are checked.
    """
    try:
        checkpoint = open_model(folder, adapter)
        texts = list(describe_template_problems(checkpoint, code=False))
        if checkpoint.has_weights:
            names = checkpoint.find_names()
            texts += describe_size_problems(checkpoint, names) if names is not None else ()
        elif adapter is not None and describe_other_format(checkpoint.trunk):
            checkpoint.require_weights()
    except EmbergeError as error:
        return (str(error),)
    return texts


@contextmanager
def open_whole_model(model: Model, work: Path, machine: Machine | None = None) -> Iterator[Path]:
    """Yield a model's folder; for `base+adapter`, a temporary one with the adapted model in float32.

    The temporary folder is in `work`; if a killed process left it there complete, it is used again. Memory is
    bounded as in a merge.

    Raises:
        CheckpointError: if the adapter does not fit its base or cannot be merged, or the disk is too small.
    """
    if model.adapter is None:
        yield model.folder
        return
    out = work / "whole" / (model.fingerprint[:16] or model.adapter.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not out.is_dir():
            _build_whole_model(model, model.adapter, out, machine)
        yield out
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _build_whole_model(model: Model, adapter: Path, out: Path, machine: Machine | None) -> None:
    """Write the adapted model's folder at `out`."""
    from emberge.merging.streaming.jobs import CopyJob  # these load torch
    from emberge.merging.streaming.stream import build_checkpoint
    from emberge.tensor_files import FileSource, TensorReader

    adapted = open_model(model.folder, adapter)
    specs = _list_adapted_specs(adapted.tensor_names)
    merged = MergeInput(model.name, model.folder, fingerprint=model.fingerprint, adapter=adapter)
    with TensorReader() as reader:
        jobs = [CopyJob(spec, FileSource(model.name, spec, reader)) for spec in specs]
        key = hashlib.sha256(json.dumps(merged.identify_content()).encode()).hexdigest()
        build_checkpoint(jobs, out, template=adapted, key=key, machine=machine)


def _list_adapted_specs(names: TensorNames) -> list[TensorSpec]:
    """Return the adapted model's tensors: in their stored dtype if unchanged, else in float32."""
    stored_specs = {n: spec for n, spec in names.specs.items() if not names.is_redundant(n)}
    return [
        (spec if is_buffer(name) else _convert_to_float32(spec)).with_name(
            names.name_in_result(spec)
        )
        for name, spec in stored_specs.items()
    ]


def _convert_to_float32(spec: TensorSpec) -> TensorSpec:
    if spec.dtype == _ADAPTED_DTYPE or not spec.mergeable:
        return spec
    if isinstance(spec, DerivedTensor):
        return dataclasses.replace(spec, dtype=_ADAPTED_DTYPE)
    return AdaptedSpec(spec.name, spec.shape, _ADAPTED_DTYPE, origin=spec, changes=())

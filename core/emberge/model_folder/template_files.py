"""Copies of a model folder without its weights: what a merge or a training leaves beside new weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge.files import write_json
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.file_table import TOKENIZER_FILES
from emberge.model_folder.model_code import drop_code
from emberge.model_folder.model_files import copied_files, copy_file
from emberge.model_folder.st_layout import classic_files

_QUANTISED = ("quantization_config", "compression_config")


def copy_template(
    template: Checkpoint,
    out: Path,
    *,
    dtype: str,
    tokenizer: Path | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write configs, tokenizer and modules of the template into `out`; never its README.

    modules.json gets the classic type names, which old and new releases load, where every module has one.
    `config` replaces the transformer's config, and the weights' `dtype` is put into it; `tokenizer` is a
    folder whose tokenizer files are taken instead. A file in which nothing changes is copied byte for byte.
    Code and its names in configs stay behind (`drop_code`).

    Raises:
        UnsoundFileError: for links that lead out of the template's folder.
    """
    for path in copied_files(template):
        copy_file(path, out / path.relative_to(template.folder), template.folder)
    trunk = out / template.trunk.relative_to(template.folder)
    trunk.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        _take_tokenizer(Checkpoint(tokenizer), trunk)
    if template.config:
        new = _with_dtype(dict(template.config if config is None else config), dtype)
        if new != template.config:
            write_json(trunk / "config.json", new, durable=False)
    for module in template.chain:
        # An installed package may have lost folders that have no file, such as `2_Normalize`.
        (out / module.path).mkdir(parents=True, exist_ok=True)
    for name, content in classic_files(template.folder).items():
        write_json(out / name, content, durable=False)
    drop_code(template, out)


def _take_tokenizer(source: Checkpoint, trunk: Path) -> None:
    own = source.tokenizer_folder
    for name in TOKENIZER_FILES:
        (trunk / name).unlink(missing_ok=True)
        if (own / name).is_file():
            copy_file(own / name, trunk / name, source.folder)


def _with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    if dtype == "float32" and not {"torch_dtype", "dtype"} & set(config):
        return config  # a config without a dtype means float32
    old = "torch_dtype" in config
    changed = {**config, "torch_dtype" if old else "dtype": dtype}
    if old and "dtype" in config:
        changed["dtype"] = dtype
    # New weights are never quantised, whatever the template's are.
    return {key: value for key, value in changed.items() if key not in _QUANTISED}

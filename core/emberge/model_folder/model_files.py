"""Files of model folders: those that are copied, hashed and published, and copies without weights and code.

A config may name classes (`auto_map`) in files of its folder or in another model, and
`trust_remote_code=True` runs them on loading. A result loads without remote code, so these names are left out
of the copy. Two exceptions have no class in transformers: an architecture that an installed plugin added,
whose file comes from the plugin and not from a parent, and Nomic's mixture of experts, whose code is its
authors'.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.architectures import find_class_file
from emberge.errors import CheckpointError
from emberge.files import link_or_copy, write_json
from emberge.hashes import HashCache, hash_value
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import (
    EXTRA_FOLDERS,
    FILE_RULES,
    RECORD_REASON,
    REPOSITORY_REASON,
    STATE_REASON,
    TOKENIZER_FILES,
    find_rule,
    read_model_json,
    read_object_if_any,
    require_sound,
    resolve_file,
)
from emberge.model_folder.model_config import TextLimit
from emberge.model_folder.st_layout import find_trunk_settings, read_modules
from emberge.tensor_files import RemoteFile
from emberge.wording import hide_folders, join_some

_UNPUBLISHED_REASONS = (REPOSITORY_REASON, STATE_REASON, RECORD_REASON)
_NOT_OF_MODEL = "no file of a model"
# Keys that name code, or that trust it, and the type of their values.
_CODE_KEYS: Mapping[str, type] = {
    "auto_map": dict,
    "custom_pipelines": dict,
    "trust_remote_code": bool,
}
# Mixtures of experts that transformers has no class for, and the model on the hub with their code.
_CODE_ON_HUB = {"nomic_bert": "nomic-ai/nomic-bert-2048"}
# Keys under which libraries store where a model lay, which may be a path of somebody's machine.
_PATH_KEYS = ("_name_or_path", "name_or_path", "tokenizer_file", "cache_dir")
# Long files of a tokenizer, in which no library reads such keys, so that they are not searched.
_CODELESS_FILES = ("tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
_SHOWN_NAMES = 3


def list_copied_files(checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the files that are copied into a result: configs, tokenizer and licences, of all modules."""
    for folder in _list_model_folders(checkpoint):
        require_sound(folder, checkpoint.folder)
        for path in sorted(folder.iterdir()):
            rule = find_rule(path.name, is_folder=path.is_dir())
            if rule is not None and rule.copied and path.is_file():
                yield path


def copy_file(path: Path, target: Path, folder: Path, *, link: bool = False) -> None:
    """Copy a file of the model in `folder` to `target`, or with `link` create a hard link."""
    real = resolve_file(path, folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    if link:
        link_or_copy(str(real), str(target))
    else:
        target.unlink(missing_ok=True)
        shutil.copyfile(real, target)


def list_files_not_copied(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Return the paths not copied into a result, by reason; paths of folders end with a slash.

    Weights are not listed, as a result has its own weights.
    """
    files_by_reason: dict[str, list[str]] = {}
    weights = {s.file for s in checkpoint.specs.values()} if checkpoint.has_weights else set()
    inside = set(_list_model_folders(checkpoint))
    known = inside | weights | {parent for folder in inside for parent in folder.parents}
    for folder in inside - {checkpoint.folder / name for name in EXTRA_FOLDERS}:
        for path in folder.iterdir():
            rule = find_rule(path.name, is_folder=path.is_dir())
            is_copied = rule is not None and rule.copied and not path.is_dir()
            if is_copied or path in known or path.name == "model.safetensors.index.json":
                continue
            name = path.relative_to(checkpoint.folder).as_posix() + "/" * path.is_dir()
            reason = _NOT_OF_MODEL if rule is None or rule.copied else rule.reason
            files_by_reason.setdefault(reason, []).append(name)
    order = [*dict.fromkeys(rule.reason for rule in FILE_RULES), _NOT_OF_MODEL]
    return {
        reason: sorted(files_by_reason[reason], key=lambda n: (n.rstrip("/").count("/"), n))
        for reason in sorted(files_by_reason, key=order.index)
    }


def list_published_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder to publish: no states, records, hidden files or links."""
    for path in sorted(folder.iterdir()):
        rule = find_rule(path.name, is_folder=path.is_dir())
        if path.is_symlink() or (rule is not None and rule.reason in _UNPUBLISHED_REASONS):
            continue
        if path.is_dir():
            yield from list_published_files(path)
        elif path.is_file():
            yield path


def list_hashed_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that decide its embeddings.

    Raises:
        CheckpointError: if a folder may not be read.
    """
    try:
        module_folders = [module.path for module in read_modules(folder)]
    except CheckpointError:
        module_folders = []  # the folder's check names the problem
    listed: list[Path] = []
    inner_folders = dict.fromkeys(folder / name for name in ("", *module_folders, *EXTRA_FOLDERS))
    for inner in filter(Path.is_dir, inner_folders):
        require_sound(inner, folder)
        files = sorted(path for path in inner.iterdir() if path.is_file())
        rule_by_file = {path: rule for path in files if (rule := find_rule(path.name)) is not None}
        has_safetensors = any(path.suffix == ".safetensors" for path in rule_by_file)
        wanted = ("yes",) if has_safetensors else ("yes", "alone")
        listed += (path for path, rule in rule_by_file.items() if rule.hashed in wanted)
    return listed


def hash_model(folder: Path, cache: HashCache | None = None, adapter: Path | None = None) -> str:
    """Return a hash of all files that decide a model's embeddings, including an adapter's.

    Raises:
        CheckpointError: if the folder has no file of a model, or may not be read.
    """
    files = {file.relative_to(folder).as_posix(): file for file in list_hashed_files(folder)}
    if not files:
        raise CheckpointError(f"{folder}: has no model: neither configs nor weights")
    notes = {name: file for name, file in files.items() if RemoteFile.is_note(file)}
    local_files = {name: file for name, file in files.items() if name not in notes}
    fingerprint = (cache or HashCache()).of_files(local_files)
    if notes:
        contents = {name: RemoteFile.read(note).content for name, note in notes.items()}
        fingerprint = hash_value([fingerprint, contents])
    if adapter is None:
        return fingerprint
    return hash_value([fingerprint, hash_model(adapter, cache)])


def _list_model_folders(checkpoint: Checkpoint) -> list[Path]:
    names = (*(module.path for module in checkpoint.all_modules), *EXTRA_FOLDERS)
    folders = [checkpoint.folder, checkpoint.trunk, *(checkpoint.folder / name for name in names)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


@dataclass(frozen=True, slots=True)
class ClassCode:
    """The code of a class outside transformers: its name in `auto_map`, and its file if from a plugin."""

    name: str
    file: Path | None = None


def find_class_code(config: Mapping[str, Any]) -> ClassCode | None:
    """Return the trusted code of a config's class; None if there is none, or if it is not trusted."""
    class_by_auto = config.get("auto_map")
    if not isinstance(class_by_auto, dict) or not isinstance(class_by_auto.get("AutoModel"), str):
        return None
    model_type = str(config.get("model_type"))
    file = find_class_file(model_type)
    if file is None and not (model_type in _CODE_ON_HUB and config.get("num_experts")):
        return None
    prefix = f"{_CODE_ON_HUB[model_type]}--" if file is None else f"{file.stem}."
    is_trusted = all(str(name).startswith(prefix) for name in class_by_auto.values())
    return ClassCode(class_by_auto["AutoModel"], file) if is_trusted else None


def _drop_code_and_paths(template: Checkpoint, out: Path) -> None:
    """Remove code and paths of a machine from the JSON files in `out`, a copy of the template's folder.

    For a class of `find_class_code` the references stay, and the plugin's file is copied.
    """
    trunk = out / template.trunk.relative_to(template.folder)
    class_code = find_class_code(read_object_if_any(trunk / "config.json"))
    module_folders = [module.path for module in template.all_modules]
    folders = dict.fromkeys(
        [out, trunk, *(out / name for name in (*module_folders, *EXTRA_FOLDERS))]
    )
    for path in [path for folder in folders for path in sorted(folder.glob("*.json"))]:
        keeps_code = class_code is not None and path == trunk / "config.json"
        if keeps_code or path.name in _CODELESS_FILES or path.name.endswith(".index.json"):
            continue
        try:
            content = read_model_json(path)
        except CheckpointError:
            continue  # no library reads it either
        if (stripped := _strip_code(content)) != content:
            write_json(path, stripped, durable=False)
    if class_code is not None and class_code.file is not None:
        copy_file(class_code.file, trunk / class_code.file.name, class_code.file.parent)


def _strip_code(value: Any) -> Any:
    """Return a JSON value without keys that name code, or a path of somebody's machine."""
    if isinstance(value, list):
        return [_strip_code(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _strip_code(inner)
        for key, inner in value.items()
        if not (key in _CODE_KEYS and isinstance(inner, _CODE_KEYS[key]))
        and not (key in _PATH_KEYS and hide_folders(inner) != inner)
    }


def copy_model(folder: Path, out: Path, *, link: bool = False) -> None:
    """Copy the files that make a model from one folder into another, replacing existing files.

    With `link` the files are hard links, if the file system has them; this is for files that no longer
    change, such as those of a step's result.
    """
    checkpoint = Checkpoint(folder)
    for module in checkpoint.all_modules:
        (out / module.path).mkdir(parents=True, exist_ok=True)  # some have no file
    for path in dict.fromkeys([*list_hashed_files(folder), *list_copied_files(checkpoint)]):
        if path.suffix != ".py":
            copy_file(path, out / path.relative_to(folder), folder, link=link)
    _drop_code_and_paths(checkpoint, out)


def copy_template(
    template: Checkpoint,
    out: Path,
    *,
    dtype: str,
    tokenizer: Path | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write configs, tokenizer and modules of the template into `out`; never its README.

    A longest text with more tokens than the template has positions for is cut to that number.
    `config` replaces the transformer's config, and the weights' `dtype` is put into it; `tokenizer` is a
    folder whose tokenizer files replace the template's. A file in which nothing changes is copied byte for
    byte. Code, and references to it in configs, are not copied (`_drop_code_and_paths`).
    """
    for path in list_copied_files(template):
        copy_file(path, out / path.relative_to(template.folder), template.folder)
    trunk = out / template.trunk.relative_to(template.folder)
    trunk.mkdir(parents=True, exist_ok=True)
    if template.base is not None:
        _copy_files_of_base(template, template.base, trunk)
    source = template if tokenizer is None else Checkpoint(tokenizer)
    if source.tokenizer_folder not in (template.trunk, template.folder):
        _copy_tokenizer(source.tokenizer_folder, trunk)
    new_config = dict(template.config if config is None else config)
    states_dtype = not {"torch_dtype", "dtype"}.isdisjoint(new_config)
    if states_dtype or dtype != "float32":  # which a config without a dtype means
        new_config["torch_dtype" if "torch_dtype" in new_config else "dtype"] = dtype
    if template.config and new_config != read_object_if_any(trunk / "config.json"):
        write_json(trunk / "config.json", new_config, durable=False)
    for module in template.all_modules:
        # An installed package may have lost folders that have no file, such as `2_Normalize`.
        (out / module.path).mkdir(parents=True, exist_ok=True)
    limit = TextLimit.of(template)
    if template.modules and limit.is_overstated:
        path = find_trunk_settings(trunk)
        settings = {**read_object_if_any(path), "max_seq_length": limit.positions}
        write_json(path, settings, durable=False)
    _drop_code_and_paths(template, out)


def _copy_files_of_base(template: Checkpoint, base: Checkpoint, trunk: Path) -> None:
    """Copy the files that a folder with an adapter and modules lacks and takes from its base."""
    has_tokenizer = template.tokenizer_folder != base.tokenizer_folder
    for path in list_copied_files(base) if base.folder != template.folder else ():
        is_in_trunk = path.parent in (base.trunk, base.folder)
        is_replaced = has_tokenizer and path.name in TOKENIZER_FILES
        if is_in_trunk and not is_replaced and not (trunk / path.name).exists():
            copy_file(path, trunk / path.name, path.parent)


def _copy_tokenizer(source: Path, trunk: Path) -> None:
    for name in TOKENIZER_FILES:
        (trunk / name).unlink(missing_ok=True)
        if (source / name).is_file():
            copy_file(source / name, trunk / name, source)


def describe_origin(template: Checkpoint) -> str:
    """Return one line about the template: its name, and the files that are not copied, with reasons."""
    name = template.folder.name
    omitted_texts = [
        f"{join_some(names, _SHOWN_NAMES)} ({reason})"
        for reason, names in list_files_not_copied(template).items()
    ]
    omitted = f"; left out: {', '.join(omitted_texts)}" if omitted_texts else ""
    return f"configs, tokenizer and modules come from '{name}'{omitted}"

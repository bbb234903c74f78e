"""Models, adapters and files outside a recipe, found by the references that name them."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from emberge.contracts import DataRef, FileRef, ModelRef, Reference
from emberge.errors import CheckpointError, DataError, suggest
from emberge.interpreter import locate_package
from emberge.model_folder import Checkpoint, describe_other_format, read_object
from emberge.plugins import Plugins
from emberge.tensor_files import SCHEMES, WEIGHTS

Files = Literal["all", "metadata", "ranges"]
_PACKAGE = "pkg:"
_ADAPTER_WEIGHTS = "adapter_model.safetensors"  # peft's name
_MODEL_SIGN_FILES = ("modules.json", "config.json", "adapter_config.json")


@dataclass(frozen=True)
class LocatedModel:
    """A model outside the recipe: its name in messages, its folder, and the adapter's folder."""

    name: str
    folder: Path
    adapter: Path | None = None


def is_folder(text: str) -> bool:
    """Return whether a reference is written as a folder: `./x`, `../x`, `/x`, `~/x`."""
    return text in (".", "..", "~") or text.startswith(("./", "../", "/", "~/"))


def complete_reference(text: str) -> str:
    """Return a reference given on a command line; a bare name of a folder here means the folder: `./x`.

    In `model+adapter` each may be a bare name.
    """
    if (is_folder(text) and Path(text).is_dir()) or not text:
        return text
    if Path(text).is_dir():
        return f"./{text}"
    places = [i for i, letter in enumerate(text) if letter == "+"]
    for place in places:
        main, adapter = text[:place], text[place + 1 :]
        if Path(adapter).expanduser().is_dir():
            return f"{complete_reference(main)}+{adapter if is_folder(adapter) else f'./{adapter}'}"
    reference = ModelRef(text)
    bare = reference.adapter is not None and not is_folder(text) and Path(reference.main).is_dir()
    return f"./{text}" if bare else text


def locate_model(reference: ModelRef, plugins: Plugins, files: Files = "all") -> LocatedModel:
    """Find a model outside the recipe.

    Raises:
        CheckpointError: if the model does not exist; names the places searched and the remedy.
        ConnectionError: if it could not be searched for.
    """
    whole_path = (
        resolve_outside_path(reference.text, reference) if is_folder(reference.text) else None
    )
    if whole_path is not None and whole_path.is_dir():  # even if its name contains a plus sign
        folder = _require_model(whole_path, reference.text)
        return _put_on_base(LocatedModel(whole_path.name, folder), reference, plugins, files)
    folder = _locate_folder(reference.main, reference, plugins, files)
    name = folder.name if is_folder(reference.main) else reference.main
    if reference.adapter is None:
        return _put_on_base(LocatedModel(name, folder), reference, plugins, files)
    adapter = locate_adapter(reference, plugins, files)
    return LocatedModel(f"{name}+{adapter.name}", folder, adapter)


def _put_on_base(
    located: LocatedModel, reference: ModelRef, plugins: Plugins, files: Files
) -> LocatedModel:
    """Return a model; of a folder with an adapter alone, the base that its config names with the adapter.

    The base is a folder, from the recipe's or the adapter's on, or a model that a plugin knows. If it is
    nowhere, the adapter's folder remains, which whoever reads weights refuses with the remedy.
    """
    checkpoint = Checkpoint(located.folder)
    if not checkpoint.is_adapter:
        return located
    content = read_object(checkpoint.trunk / "adapter_config.json")
    keys = ("base_model_name_or_path", "revision")
    name, revision = (str(content.get(key) or "") for key in keys)
    paths = (place / name for place in (reference.folder, located.folder.parent, located.folder))
    base = next((path for path in paths if name and path.is_dir()), None)
    if base is None and name and not is_folder(name):
        with suppress(CheckpointError, ConnectionError):
            hub_id = f"{name}@{revision}" if revision else name
            base = _locate_folder(hub_id, reference, plugins, files)
    return located if base is None else replace(located, folder=base, adapter=located.folder)


def locate_adapter(reference: ModelRef, plugins: Plugins, files: Files = "all") -> Path:
    """Find the folder of the adapter in `model+adapter`.

    Raises:
        CheckpointError: if the adapter is missing, or the folder has no adapter.
        ConnectionError: if it could not be searched for.
    """
    text = reference.adapter or ""
    adapter = _locate_folder(text, reference, plugins, files)
    if not (Checkpoint(adapter).trunk / "adapter_config.json").is_file():
        raise CheckpointError(f"'{text}' is no adapter: it has no adapter_config.json")
    return adapter


def describe_missing_weights(reference: ModelRef, located: LocatedModel) -> str | None:
    """Return the message if the model or its adapter has no weights; None if nothing is missing.

    For a model on the hub, only metadata may have been downloaded yet. Damaged weights are found elsewhere.
    """
    if is_folder(reference.main):
        missing = _describe_weightless_model(reference.main, Checkpoint(located.folder))
        if missing is not None:
            return missing
    text = reference.adapter or reference.main
    if located.adapter is None or not is_folder(text):
        return None
    trunk = Checkpoint(located.adapter).trunk
    has_weights = any(trunk.glob(f"{Path(_ADAPTER_WEIGHTS).stem}.*"))
    return None if has_weights else _describe_missing_file(text, _ADAPTER_WEIGHTS, located.adapter)


def _describe_weightless_model(text: str, checkpoint: Checkpoint) -> str | None:
    try:
        if checkpoint.has_weights:
            return None
        return describe_other_format(checkpoint.trunk) or _describe_missing_file(
            text, WEIGHTS, checkpoint.trunk
        )
    except CheckpointError:
        return None


def _describe_missing_file(text: str, file: str, folder: Path) -> str:
    return (
        f"'{text}' has no weights: there is no {file} in {folder}; get it, or name another folder"
    )


def locate_file(reference: DataRef | FileRef) -> Path:
    """Find a file or folder outside the recipe; `pkg:numpy` is the folder of an installed package.

    Raises:
        DataError: if it does not exist; names the places searched.
    """
    if reference.text.startswith(_PACKAGE):
        folder = locate_package(reference.text.removeprefix(_PACKAGE))
        if folder is None:
            raise DataError(
                f"'{reference.text}': no such package with a folder is installed; install it or name a folder"
            )
        return folder
    path = resolve_outside_path(reference.text, reference)
    if not path.exists():
        hint = _suggest_name(path)
        raise DataError(f"'{reference.text}' is missing (looked for {path.absolute()}){hint}")
    return path


def resolve_outside_path(text: str, reference: Reference) -> Path:
    """Return the path that a text means, relative to the folder of its recipe."""
    path = Path(text).expanduser()
    return path if path.is_absolute() else reference.folder / path


def list_kept_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of checkpoints that a step kept in `folder`, in the order of their numbers."""

    def key(path: Path) -> tuple[int, str]:
        numbers = re.findall(r"\d+", path.name)
        return (int(numbers[-1]) if numbers else -1, path.name)

    paths = folder.glob("checkpoints/*")
    return sorted((p for p in paths if p.is_dir() and not p.name.startswith(".")), key=key)


def _locate_folder(text: str, reference: ModelRef, plugins: Plugins, files: Files) -> Path:
    if is_folder(text):
        folder = resolve_outside_path(text, reference)
        if not folder.is_dir():
            hint = _suggest_name(folder)
            raise CheckpointError(
                f"'{text}': there is no such folder (looked for {folder.absolute()}){hint}"
            )
        return _require_model(folder, text)
    name, separator, revision = text.rpartition("@")
    located = plugins.hook.locate_model(
        reference=name if separator else text, revision=revision if separator else None, files=files
    )
    if located is None:
        raise CheckpointError(_describe_missing_model(text, reference, plugins))
    return Path(located)


def _require_model(folder: Path, text: str) -> Path:
    if any((folder / sign).is_file() for sign in _MODEL_SIGN_FILES):
        return folder
    model_subfolders = sorted(
        p.parent.name for sign in _MODEL_SIGN_FILES for p in folder.glob(f"*/{sign}")
    )
    hint = f"; did you mean '{text.rstrip('/')}/{model_subfolders[0]}'?" if model_subfolders else ""
    raise CheckpointError(
        f"'{text}' is no model: it has neither modules.json nor config.json{hint}"
    )


def _describe_missing_model(text: str, reference: ModelRef, plugins: Plugins) -> str:
    asked_plugins = [i.plugin_name for i in plugins.hook.locate_model.get_hookimpls()]
    asked_text = (
        f"asked: {', '.join(asked_plugins)}"
        if asked_plugins
        else "no plugin that looks for models is loaded"
    )
    is_local = (reference.folder / text).exists()
    advice = (
        f"write ./{text} for the folder"
        if is_local
        else f"addresses are read that begin with {', '.join(SCHEMES)}"
        if "://" in text
        else f"if you meant the folder ./{text} write it so"
    )
    return f"there is no model '{text}' ({asked_text}); {advice}"


def _suggest_name(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    return suggest(path.name, [p.name for p in path.parent.iterdir()])

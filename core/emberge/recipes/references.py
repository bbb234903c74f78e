"""Models, adapters and files outside a recipe, found by the references that name them."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emberge.contracts import DataRef, FileRef, ModelRef, Reference
from emberge.errors import CheckpointError, DataError, suggest
from emberge.hookspecs import WantedFiles
from emberge.interpreter import locate_package
from emberge.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MODEL_SIGNS,
    Checkpoint,
    describe_other_format,
    read_object,
)
from emberge.plugins import Plugins
from emberge.results import read_artifact
from emberge.tensor_files import SCHEMES, WEIGHTS_FILE

_PACKAGE_PREFIX = "pkg:"


@dataclass(frozen=True)
class LocatedModel:
    """A model outside the recipe: its name in messages, its folder, and the adapter's folder."""

    name: str
    folder: Path
    adapter: Path | None = None


def is_folder_reference(text: str) -> bool:
    """Return whether a reference is written as a folder: `./x`, `../x`, `/x`, `~/x`."""
    return text in (".", "..", "~") or text.startswith(("./", "../", "/", "~/"))


def complete_reference(text: str) -> str:
    """Return a reference from a command line with `./` before each bare name of a folder that exists here.

    With folders `x` and `y`, `x` and `./x` become `./x`, `x+y` becomes `./x+./y`, and `hub/id+y` becomes
    `hub/id+./y`.
    """
    if not text or Path(text).is_dir():
        return _mark_folder(text)
    for index in (i for i, letter in enumerate(text) if letter == "+"):
        main, adapter = text[:index], text[index + 1 :]
        if Path(adapter).expanduser().is_dir():
            return f"{complete_reference(main)}+{_mark_folder(adapter)}"
    reference = ModelRef(text)
    is_bare = reference.adapter is not None and Path(reference.main).is_dir()
    return _mark_folder(text) if is_bare else text


def _mark_folder(text: str) -> str:
    """Return the name of a folder as a reference to it, with `./` if it is bare."""
    return text if not text or is_folder_reference(text) else f"./{text}"


def locate_model(
    reference: ModelRef, plugins: Plugins, files: WantedFiles = "all", *, deep: bool = True
) -> LocatedModel:
    """Find a model outside the recipe; with `deep=False`, the network is not used.

    Raises:
        CheckpointError: if the model does not exist; names the places searched and the remedy.
        ConnectionError: if the model, or the base of an adapter, could not be searched for.
    """
    text, has_adapter = reference.main, reference.adapter is not None
    is_path = is_folder_reference(reference.text)
    if is_path and resolve_outside_path(reference.text, reference).is_dir():
        text, has_adapter = reference.text, False  # even if its name contains a plus sign
    folder = _locate_folder(text, reference, plugins, files, deep)
    name = folder.name if is_folder_reference(text) else text
    if has_adapter:
        adapter = locate_adapter(reference, plugins, files, deep=deep)
        return LocatedModel(f"{name}+{adapter.name}", folder, adapter)
    if not Checkpoint(folder).is_adapter:
        return LocatedModel(name, folder)
    base = _find_base(folder, reference, plugins, files, deep)
    return LocatedModel(name, folder) if base is None else LocatedModel(name, base, folder)


def _find_base(
    adapter: Path, reference: ModelRef, plugins: Plugins, files: WantedFiles, deep: bool
) -> Path | None:
    """Return the base that the config of an adapter names: a folder, or a model that a plugin knows.

    A folder's path is relative to the recipe or to the adapter. An adapter that a step made names a mere
    folder there, and its base by a reference in artifact.json. The result is None if the base is nowhere; the
    code that reads weights then refuses the adapter's folder, with the remedy.
    """
    artifact = read_artifact(adapter)
    recorded = artifact.base.reference if artifact is not None and artifact.base is not None else ""
    content = read_object(Checkpoint(adapter).trunk / ADAPTER_CONFIG)
    keys = ("base_model_name_or_path", "revision")
    name, revision = (str(content.get(key) or "") for key in keys)
    folders = (reference.folder, adapter.parent, adapter)
    paths = (folder / text for text in (recorded, name) if text for folder in folders)
    base = next((path for path in paths if path.is_dir()), None)
    hub_id = recorded or (f"{name}@{revision}" if name and revision else name)
    if base is None and hub_id and not is_folder_reference(hub_id) and hub_id[0] != "$":
        with suppress(CheckpointError):
            return _locate_folder(hub_id, reference, plugins, files, deep)
    return base


def locate_adapter(
    reference: ModelRef, plugins: Plugins, files: WantedFiles = "all", *, deep: bool = True
) -> Path:
    """Find the folder of the adapter in `model+adapter`; with `deep=False`, the network is not used.

    Raises:
        CheckpointError: if the adapter is missing, or the folder has no adapter.
        ConnectionError: if it could not be searched for.
    """
    text = reference.adapter or ""
    adapter = _locate_folder(text, reference, plugins, files, deep)
    if not (Checkpoint(adapter).trunk / ADAPTER_CONFIG).is_file():
        raise CheckpointError(f"'{text}' is no adapter: it has no {ADAPTER_CONFIG}")
    return adapter


def describe_missing_weights(reference: ModelRef, located: LocatedModel) -> str | None:
    """Return the message if the model or its adapter has no weights; None if nothing is missing.

    For a model on the hub, only metadata may have been downloaded yet. Damaged weights are found elsewhere.
    """
    if is_folder_reference(reference.main):
        checkpoint = Checkpoint(located.folder)
        with suppress(CheckpointError):
            if not checkpoint.has_weights:
                return describe_other_format(checkpoint.trunk) or _describe_missing_file(
                    reference.main, WEIGHTS_FILE, checkpoint.trunk
                )
    text = reference.adapter or reference.main
    if located.adapter is None or not is_folder_reference(text):
        return None
    trunk = Checkpoint(located.adapter).trunk
    has_weights = any(trunk.glob(f"{Path(ADAPTER_WEIGHTS).stem}.*"))
    return None if has_weights else _describe_missing_file(text, ADAPTER_WEIGHTS, located.adapter)


def _describe_missing_file(text: str, file: str, folder: Path) -> str:
    return (
        f"'{text}' has no weights: there is no {file} in {folder}; get it, or name another folder"
    )


def locate_file(reference: DataRef | FileRef) -> Path:
    """Find a file or folder outside the recipe; `pkg:numpy` is the folder of an installed package.

    Raises:
        DataError: if it does not exist; names the places searched.
    """
    if reference.text.startswith(_PACKAGE_PREFIX):
        folder = locate_package(reference.text.removeprefix(_PACKAGE_PREFIX))
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


def _locate_folder(
    text: str, reference: ModelRef, plugins: Plugins, files: WantedFiles, deep: bool
) -> Path:
    if is_folder_reference(text):
        folder = resolve_outside_path(text, reference)
        if not folder.is_dir():
            hint = _suggest_name(folder)
            raise CheckpointError(
                f"'{text}': there is no such folder (looked for {folder.absolute()}){hint}"
            )
        if any((folder / sign).is_file() for sign in MODEL_SIGNS):
            return folder
        subfolders = sorted(p.parent.name for s in MODEL_SIGNS for p in folder.glob(f"*/{s}"))
        hint = f"; did you mean '{text.rstrip('/')}/{subfolders[0]}'?" if subfolders else ""
        raise CheckpointError(
            f"'{text}' is no model: it has neither modules.json nor config.json{hint}"
        )
    if resolve_outside_path(text, reference).is_dir():
        raise CheckpointError(
            f"'{text}': a folder {text} is here; write ./{text} ({text}@main is the hub's)"
        )
    if not deep and ("://" in text or ":" not in text):
        raise ConnectionError("the network is not used")
    try:
        return _ask_plugins(text, plugins, files)
    except ConnectionError as error:
        hint = "" if ":" in text else f", and there is no folder ./{text}"
        raise ConnectionError(f"{error}{hint}") from error


def _ask_plugins(text: str, plugins: Plugins, files: WantedFiles) -> Path:
    name, separator, revision = text.rpartition("@")
    located = plugins.hook.locate_model(
        reference=name if separator else text, revision=revision if separator else None, files=files
    )
    if located is None:
        raise CheckpointError(_describe_missing_model(text, plugins))
    return Path(located)


def _describe_missing_model(text: str, plugins: Plugins) -> str:
    asked_plugins = [i.plugin_name for i in plugins.hook.locate_model.get_hookimpls()]
    asked_text = (
        f"asked: {', '.join(asked_plugins)}"
        if asked_plugins
        else "no plugin that looks for models is loaded"
    )
    advice = (
        f"addresses are read that begin with {', '.join(SCHEMES)}"
        if "://" in text
        else f"if you meant the folder ./{text} write it so"
    )
    return f"there is no model '{text}' ({asked_text}); {advice}"


def _suggest_name(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    return suggest(path.name, [p.name for p in path.parent.iterdir()])

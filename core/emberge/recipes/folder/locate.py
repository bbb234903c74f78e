"""From a reference in a recipe to the folder or file that it means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emberge.contracts import DataRef, FileRef, ModelRef, Reference
from emberge.errors import CheckpointError, DataError
from emberge.network import KINDS
from emberge.plugins import Plugins

Files = Literal["all", "metadata", "ranges"]
_SIGNS = ("modules.json", "config.json", "adapter_config.json")


@dataclass(frozen=True)
class LocatedModel:
    """A model outside the recipe: its name for people, its folder, and the adapter on it."""

    name: str
    folder: Path
    adapter: Path | None = None


def is_folder(text: str) -> bool:
    """Return whether a reference is written as a folder: `./x`, `../x`, `/x`, `~/x`."""
    return text in (".", "..", "~") or text.startswith(("./", "../", "/", "~/"))


def locate_model(reference: ModelRef, plugins: Plugins, files: Files = "all") -> LocatedModel:
    """Find a model that no step makes.

    Raises:
        CheckpointError: saying where it was looked for and what to do.
        ConnectionError: when it could not be looked for.
    """
    whole = outside_folder(reference.text, reference) if is_folder(reference.text) else None
    if whole is not None and whole.is_dir():  # even one with a plus sign in its name
        return LocatedModel(whole.name, _a_model(whole, reference.text))
    folder = _locate(reference.main, reference, plugins, files)
    name = folder.name if is_folder(reference.main) else reference.main
    if reference.adapter is None:
        return LocatedModel(name, folder)
    adapter = locate_adapter(reference, plugins, files)
    return LocatedModel(f"{name}+{adapter.name}", folder, adapter)


def locate_adapter(reference: ModelRef, plugins: Plugins, files: Files = "all") -> Path:
    """Find the folder of the adapter in `model+adapter`.

    Raises:
        CheckpointError: when it is missing, or is no adapter.
        ConnectionError: when it could not be looked for.
    """
    text = reference.adapter or ""
    adapter = _locate(text, reference, plugins, files)
    if not (adapter / "adapter_config.json").is_file():
        raise CheckpointError(f"'{text}' is no adapter: it has no adapter_config.json")
    return adapter


def locate_file(reference: DataRef | FileRef) -> Path:
    """Find a file or folder that no step makes.

    Raises:
        DataError: saying where it was looked for.
    """
    path = outside_folder(reference.text, reference)
    if not path.exists():
        close = _close_name(path)
        raise DataError(f"'{reference.text}' is missing (looked for {path.absolute()}){close}")
    return path


def outside_folder(text: str, reference: Reference) -> Path:
    """Return the path that a text means, relative to the folder of its recipe."""
    path = Path(text).expanduser()
    return path if path.is_absolute() else reference.folder / path


def kept_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that a step kept in `folder`, in the order of their numbers."""
    inside = folder / "checkpoints"
    kept = [p for p in inside.iterdir() if p.is_dir()] if inside.is_dir() else []
    return sorted((p for p in kept if not p.name.startswith(".")), key=_by_number)


def _by_number(path: Path) -> tuple[int, str]:
    numbers = re.findall(r"\d+", path.name)
    return (int(numbers[-1]) if numbers else -1, path.name)


def _locate(text: str, reference: ModelRef, plugins: Plugins, files: Files) -> Path:
    if is_folder(text):
        folder = outside_folder(text, reference)
        if not folder.is_dir():
            hint = _close_name(folder)
            raise CheckpointError(
                f"'{text}': there is no such folder (looked for {folder.absolute()}){hint}"
            )
        return _a_model(folder, text)
    name, at, revision = text.rpartition("@")
    found = plugins.hook.locate_model(
        reference=name if at else text, revision=revision if at else None, files=files
    )
    if found is None:
        raise CheckpointError(_nowhere(text, reference, plugins))
    return Path(found)


def _a_model(folder: Path, text: str) -> Path:
    if any((folder / sign).is_file() for sign in _SIGNS):
        return folder
    inside = sorted(p.parent.name for sign in _SIGNS for p in folder.glob(f"*/{sign}"))
    hint = f"; did you mean '{text.rstrip('/')}/{inside[0]}'?" if inside else ""
    raise CheckpointError(
        f"'{text}' is no model: it has neither modules.json nor config.json{hint}"
    )


def _nowhere(text: str, reference: ModelRef, plugins: Plugins) -> str:
    asked = [i.plugin_name for i in plugins.hook.locate_model.get_hookimpls()]
    who = f"asked: {', '.join(asked)}" if asked else "no plugin that looks for models is loaded"
    here = (reference.folder / text).exists()
    fix = (
        f"write ./{text} for the folder"
        if here
        else f"addresses are read that begin with {', '.join(KINDS)}"
        if "://" in text
        else f"if you meant the folder ./{text} write it so"
    )
    return f"there is no model '{text}' ({who}); {fix}"


def _close_name(path: Path) -> str:
    from emberge.errors import suggest

    if not path.parent.is_dir():
        return ""
    return suggest(path.name, [p.name for p in path.parent.iterdir()])

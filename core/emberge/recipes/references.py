"""Resolution of references to results of finished steps, and to models, adapters and files from outside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from emberge.component_parts import parts_of
from emberge.contracts import Artifact, DataRef, FileRef, Model, ModelRef, Reference
from emberge.data import DataEntry
from emberge.errors import CheckpointError, DataError, EmbergeError, RecipeError
from emberge.hashes import HashCache, stable_hash
from emberge.interpreter import locate_package
from emberge.model_folder import Checkpoint, model_fingerprint, read_object
from emberge.plugins import Plugins
from emberge.results import Input, read_artifact
from emberge.tensor_files import SCHEMES

Files = Literal["all", "metadata", "ranges"]
_PACKAGE = "pkg:"
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


def name_here(text: str) -> str:
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
            return f"{name_here(main)}+{adapter if is_folder(adapter) else f'./{adapter}'}"
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
    found: LocatedModel, reference: ModelRef, plugins: Plugins, files: Files
) -> LocatedModel:
    """Return a model; of a folder with an adapter alone, the base that its config names with the adapter.

    The base is a folder, from the recipe's or the adapter's on, or a model that a plugin knows. If it is
    nowhere, the adapter's folder remains, which whoever reads weights refuses with the remedy.
    """
    checkpoint = Checkpoint(found.folder)
    if not checkpoint.is_adapter:
        return found
    content = read_object(checkpoint.trunk / "adapter_config.json")
    keys = ("base_model_name_or_path", "revision")
    name, revision = (str(content.get(key) or "") for key in keys)
    paths = (place / name for place in (reference.folder, found.folder.parent, found.folder))
    base = next((path for path in paths if name and path.is_dir()), None)
    if base is None and name and not is_folder(name):
        with suppress(CheckpointError, ConnectionError):
            hub_id = f"{name}@{revision}" if revision else name
            base = _locate_folder(hub_id, reference, plugins, files)
    return found if base is None else replace(found, folder=base, adapter=found.folder)


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


def locate_file(reference: DataRef | FileRef) -> Path:
    """Find a file or folder outside the recipe; `pkg:numpy` is the folder of an installed package.

    Raises:
        DataError: if it does not exist; names the places searched.
    """
    if reference.text.startswith(_PACKAGE):
        return _locate_package_folder(reference.text.removeprefix(_PACKAGE))
    path = resolve_outside_path(reference.text, reference)
    if not path.exists():
        hint = _suggest_name(path)
        raise DataError(f"'{reference.text}' is missing (looked for {path.absolute()}){hint}")
    return path


def _locate_package_folder(name: str) -> Path:
    folder = locate_package(name)
    if folder is None:
        raise DataError(
            f"'{_PACKAGE}{name}': no package '{name}' with a folder is installed; install it or name a folder"
        )
    return folder


def resolve_outside_path(text: str, reference: Reference) -> Path:
    """Return the path that a text means, relative to the folder of its recipe."""
    path = Path(text).expanduser()
    return path if path.is_absolute() else reference.folder / path


def list_kept_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of checkpoints that a step kept in `folder`, in the order of their numbers."""
    checkpoints_folder = folder / "checkpoints"
    folders = (
        [p for p in checkpoints_folder.iterdir() if p.is_dir()]
        if checkpoints_folder.is_dir()
        else []
    )
    return sorted((p for p in folders if not p.name.startswith(".")), key=_number_key)


def _number_key(path: Path) -> tuple[int, str]:
    digit_runs = re.findall(r"\d+", path.name)
    return (int(digit_runs[-1]) if digit_runs else -1, path.name)


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
        raise CheckpointError(_describe_missing(text, reference, plugins))
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


def _describe_missing(text: str, reference: ModelRef, plugins: Plugins) -> str:
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
    from emberge.errors import suggest

    if not path.parent.is_dir():
        return ""
    return suggest(path.name, [p.name for p in path.parent.iterdir()])


@dataclass(frozen=True)
class Result:
    """A finished step: the folder of its result, its artifact and its fingerprint.

    If the result is an adapter, `adapts` is the model that it belongs to.
    """

    folder: Path
    artifact: Artifact
    fingerprint: str
    adapts: ModelRef | None = None


class Targets:
    """The targets of a recipe's references; the runner adds each step as it finishes."""

    def __init__(self, plugins: Plugins, hashes: HashCache) -> None:
        self.plugins = plugins
        self.hashes = hashes
        self._steps: dict[str, Result] = {}
        self._outside: dict[ModelRef, Model] = {}

    def add(self, step: str, result: Result) -> None:
        """Make a result the target of `$step`."""
        self._steps[step] = result

    def step(self, reference: Reference) -> Result:
        """Return the finished step that a reference names.

        Raises:
            RecipeError: if no such step is finished.
        """
        name = reference.step
        if name is None:
            raise RecipeError(f"'{reference}' is no step; a step is written ${reference}")
        if name not in self._steps:
            raise RecipeError(f"'{reference}': no step '{name}' is finished before this one")
        return self._steps[name]

    def model(self, reference: ModelRef) -> Model:
        """Return the one model that a reference leads to.

        Raises:
            CheckpointError: if the model is missing or cannot be searched for, or if there are several.
        """
        models = self.models(reference)
        if len(models) != 1:
            raise CheckpointError(
                f"'{reference}' leads to {len(models)} models; one is needed here"
            )
        return models[0]

    def models(self, reference: ModelRef) -> Sequence[Model]:
        """Return all models that a reference leads to.

        Raises:
            CheckpointError: if there is no model, or it cannot be searched for.
        """
        if reference.step is not None:
            return self._list_produced_models(reference)
        if reference not in self._outside or not self._outside[reference].folder.is_dir():
            with _explain_network_errors(reference):
                located = locate_model(reference, self.plugins, reference.files)
            content = model_fingerprint(located.folder, self.hashes, located.adapter)
            artifact = read_artifact(located.adapter or located.folder)
            self._outside[reference] = Model(
                located.name, located.folder, content, artifact, located.adapter
            )
        return [self._outside[reference]]

    def data(self, reference: DataRef | FileRef) -> Path:
        """Return the file or folder that a reference leads to.

        Raises:
            DataError: if the file or folder is missing.
        """
        return locate_file(reference) if reference.step is None else self.step(reference).folder

    def fingerprint_value(self, value: Reference | DataEntry) -> Any:
        """Return the value of a reference or data entry in a fingerprint: the hash of its content."""
        if isinstance(value, DataEntry):
            return self._describe_entry(value)
        if value.step is not None:
            step_value = {
                "step": value.step,
                "part": value.part,
                "made": self.step(value).fingerprint,
            }
            adapter = self._locate_adapter(value)
            return (
                {**step_value, "adapter": model_fingerprint(adapter, self.hashes)}
                if adapter
                else step_value
            )
        if isinstance(value, ModelRef):
            return {"model": self.model(value).fingerprint}
        if isinstance(value, DataRef | FileRef):
            return {"content": self._hash_data(locate_file(value), ())}
        raise RecipeError(f"'{value}' names no step of the recipe")

    def _describe_entry(self, entry: DataEntry) -> Any:
        """Return the value of a data entry in a fingerprint: a hash of its files."""
        if entry.path is None:
            return None
        if entry.path.step is not None or not entry.only:
            return self.fingerprint_value(entry.path)
        return {"content": self._hash_data(locate_file(entry.path), entry.only)}

    def inputs(self, value: Any) -> list[Input]:
        """Return a step's inputs, each with the hash of its content, as `artifact.json` keeps them."""
        return list(
            dict.fromkeys(
                input_ for part in _find_references(value) for input_ in self._list_inputs(part)
            )
        )

    def _list_inputs(self, value: Reference | DataEntry) -> Iterator[Input]:
        if isinstance(value, ModelRef):
            for model in self.models(value):
                yield Input(value.text, model.name, model.fingerprint)
            return
        entry = value if isinstance(value, DataEntry) else DataEntry()
        reference = value.path if isinstance(value, DataEntry) else value
        text = reference.text if reference is not None else str(entry.hub)
        name = entry.name or text.rpartition("/")[2].removeprefix("$")
        if reference is None:  # it is identified by its name and revision
            yield Input(text, name, stable_hash([text, entry.subset, entry.revision]), "hub data")
            return
        if reference.step is not None:
            yield Input(reference.text, name, self.step(reference).fingerprint, "step")
        elif isinstance(reference, DataRef | FileRef):
            content = self._hash_data(locate_file(reference), entry.only)
            yield Input(reference.text, name, content, "data", entry.only)

    def _list_produced_models(self, reference: ModelRef) -> list[Model]:
        result = self.step(reference)
        adapter = self._locate_adapter(reference)
        if reference.part is None:
            named_folders = [(str(reference.step), result.folder)]
        else:
            checkpoints = list_kept_checkpoints(result.folder)
            named_folders = [(f"{reference.step}/{folder.name}", folder) for folder in checkpoints]
        if not named_folders:
            raise CheckpointError(f"'{reference}': the step kept no checkpoints; see its keep_last")
        return [self._build_model(name, folder, result, adapter) for name, folder in named_folders]

    def _build_model(self, name: str, folder: Path, result: Result, adapter: Path | None) -> Model:
        if result.artifact.kind != "model":
            raise CheckpointError(f"step '{name}' made {result.artifact.kind}, and no model")
        artifact = read_artifact(folder) or result.artifact
        if result.adapts is not None:
            if adapter is not None:
                raise CheckpointError(f"step '{name}' made an adapter, which takes no other on it")
            folder, adapter = self.model(result.adapts).folder, folder
        content = model_fingerprint(folder, self.hashes, adapter)
        return Model(name, folder, content, artifact, adapter)

    def _locate_adapter(self, reference: Reference) -> Path | None:
        if not isinstance(reference, ModelRef) or reference.adapter is None:
            return None
        with _explain_network_errors(reference):
            return locate_adapter(reference, self.plugins)

    def _hash_data(self, path: Path, only: Sequence[str]) -> str:
        parts = [self.hashes.of_tree(path)]
        if path.is_file() and path.suffix in (".yaml", ".yml"):
            parts += [self.hashes.of_tree(p) for p in _list_catalogued_files(path, only)]
        return stable_hash(parts)


def _find_references(value: Any) -> Iterator[Reference | DataEntry]:
    """Yield every reference in a component; for data, the whole entry that contains the reference."""
    for _, part in parts_of(value, DataEntry, Reference):
        if isinstance(part, DataEntry | Reference):
            yield part


@contextmanager
def _explain_network_errors(reference: ModelRef) -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise CheckpointError(f"'{reference}' could not be looked for: {error}") from error


def _list_catalogued_files(path: Path, only: Sequence[str]) -> list[Path]:
    """Return the files and folders that a catalogue names (of the training sets in `only`, if given)."""
    from emberge.data import load_catalogue

    catalogue = load_catalogue(path)
    listed = (*catalogue.train, *catalogue.dev, *catalogue.test)
    entries = [e for e in listed if e.path is not None and (not only or e.name in only)]
    paths = [locate_file(e.path) for e in entries if e.path is not None]
    paths += [Path(e.documents) for e in entries if e.documents is not None]
    if not only:
        paths += [s.folder for s in catalogue.eval]
    missing = [p for p in paths if not p.exists()]
    if missing:
        raise EmbergeError(f"{path}: {missing[0]} is missing")
    return paths

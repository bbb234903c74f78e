"""The targets of references while a recipe runs: finished results, and models and files outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts import Artifact, DataRef, FileRef, Model, ModelRef, Reference
from emberge.data import DataEntry
from emberge.errors import CheckpointError, EmbergeError, RecipeError
from emberge.hashes import HashCache, stable_hash
from emberge.model_folder import model_fingerprint
from emberge.plugins import Plugins
from emberge.recipes.folder.locate import (
    kept_checkpoints,
    locate_adapter,
    locate_file,
    locate_model,
)
from emberge.recipes.folder.provenance import Input
from emberge.recipes.folder.run_folder import read_artifact
from emberge.recipes.options.component_tree import parts_of


@dataclass(frozen=True)
class Result:
    """A finished step: the folder of its result, its artifact and its fingerprint.

    `adapts` is the model that a result which is an adapter belongs to.
    """

    folder: Path
    artifact: Artifact
    fingerprint: str
    adapts: ModelRef | None = None


class Results:
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
            RecipeError: when there is none.
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
            CheckpointError: when it is missing, cannot be looked for, or leads to several.
        """
        found = self.models(reference)
        if len(found) != 1:
            raise CheckpointError(f"'{reference}' leads to {len(found)} models; one is needed here")
        return found[0]

    def models(self, reference: ModelRef) -> Sequence[Model]:
        """Return all models that a reference leads to.

        Raises:
            CheckpointError: when there is none, or it cannot be looked for.
        """
        if reference.step is not None:
            return self._produced(reference)
        if reference not in self._outside or not self._outside[reference].folder.is_dir():
            with _network_errors_name(reference):
                found = locate_model(reference, self.plugins, reference.files)
            content = model_fingerprint(found.folder, self.hashes, found.adapter)
            artifact = read_artifact(found.adapter or found.folder)
            self._outside[reference] = Model(
                found.name, found.folder, content, artifact, found.adapter
            )
        return [self._outside[reference]]

    def data(self, reference: DataRef | FileRef) -> Path:
        """Return the file or folder that a reference leads to.

        Raises:
            DataError: when it is missing.
        """
        return locate_file(reference) if reference.step is None else self.step(reference).folder

    def fingerprint_value(self, value: Reference | DataEntry) -> Any:
        """Return what a reference, or an entry of data, is in a fingerprint: its content, and no path."""
        if isinstance(value, DataEntry):
            assert value.path is not None
            return {"content": self._content(locate_file(value.path), value.only)}
        if value.step is not None:
            here = {"step": value.step, "part": value.part, "made": self.step(value).fingerprint}
            adapter = self._adapter(value)
            return {**here, "adapter": model_fingerprint(adapter, self.hashes)} if adapter else here
        if isinstance(value, ModelRef):
            return {"model": self.model(value).fingerprint}
        if isinstance(value, DataRef | FileRef):
            return {"content": self._content(locate_file(value), ())}
        raise RecipeError(f"'{value}' names no step of the recipe")

    def inputs(self, value: Any) -> list[Input]:
        """Return all that a step names, each with its content, as `artifact.json` keeps it."""
        return list(dict.fromkeys(one for part in _named(value) for one in self._inputs(part)))

    def _inputs(self, value: Reference | DataEntry) -> Iterator[Input]:
        if isinstance(value, ModelRef):
            for model in self.models(value):
                yield Input(value.text, model.name, model.fingerprint)
            return
        entry = value if isinstance(value, DataEntry) else DataEntry()
        reference = value.path if isinstance(value, DataEntry) else value
        if reference is None:
            return  # a dataset of the hub, which its name and revision identify
        name = entry.name or reference.text.rpartition("/")[2].removeprefix("$")
        if reference.step is not None:
            yield Input(reference.text, name, self.step(reference).fingerprint, "step")
        elif isinstance(reference, DataRef | FileRef):
            content = self._content(locate_file(reference), entry.only)
            yield Input(reference.text, name, content, "data", entry.only)

    def _produced(self, reference: ModelRef) -> list[Model]:
        result = self.step(reference)
        adapter = self._adapter(reference)
        if reference.part is None:
            named = [(str(reference.step), result.folder)]
        else:
            kept = kept_checkpoints(result.folder)
            named = [(f"{reference.step}/{folder.name}", folder) for folder in kept]
        if not named:
            raise CheckpointError(f"'{reference}': the step kept no checkpoints; see its keep_last")
        return [self._model(name, folder, result, adapter) for name, folder in named]

    def _model(self, name: str, folder: Path, result: Result, adapter: Path | None) -> Model:
        if result.artifact.kind != "model":
            raise CheckpointError(f"step '{name}' made {result.artifact.kind}, and no model")
        artifact = read_artifact(folder) or result.artifact
        if result.adapts is not None:
            if adapter is not None:
                raise CheckpointError(f"step '{name}' made an adapter, which takes no other on it")
            folder, adapter = self.model(result.adapts).folder, folder
        content = model_fingerprint(folder, self.hashes, adapter)
        return Model(name, folder, content, artifact, adapter)

    def _adapter(self, reference: Reference) -> Path | None:
        if not isinstance(reference, ModelRef) or reference.adapter is None:
            return None
        with _network_errors_name(reference):
            return locate_adapter(reference, self.plugins)

    def _content(self, path: Path, only: Sequence[str]) -> str:
        parts = [self.hashes.of_tree(path)]
        if path.is_file() and path.suffix in (".yaml", ".yml"):
            parts += [self.hashes.of_tree(p) for p in _catalogued(path, only)]
        return stable_hash(parts)


def _named(value: Any) -> Iterator[Reference | DataEntry]:
    """Yield every reference in a component, those of data with the entry around them."""
    for _, part in parts_of(value, DataEntry, Reference):
        if isinstance(part, DataEntry | Reference):
            yield part


@contextmanager
def _network_errors_name(reference: ModelRef) -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise CheckpointError(f"'{reference}' could not be looked for: {error}") from error


def _catalogued(path: Path, only: Sequence[str]) -> list[Path]:
    """Return the files and folders that a catalogue names (of the training sets in `only`, if given)."""
    from emberge.data import load_catalogue

    catalogue = load_catalogue(path)
    entries = [e for e in (*catalogue.train, *catalogue.dev) if not only or e.name in only]
    paths = [locate_file(e.path) for e in entries if e.path is not None]
    if not only:
        paths += [s.folder for s in catalogue.eval]
    missing = [p for p in paths if not p.exists()]
    if missing:
        raise EmbergeError(f"{path}: {missing[0]} is missing")
    return paths

"""The targets of a recipe's references: results of finished steps, models and data, and their hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.component_parts import to_plain, walk_fields, walk_parts
from emberge.contracts import Artifact, DataRef, FileRef, Model, ModelRef, PerTensor, Reference
from emberge.data import DataEntry
from emberge.errors import CheckpointError, EmbergeError, PluginError, RecipeError
from emberge.files import find_user_cache
from emberge.hashes import HashCache, hash_value
from emberge.model_folder import hash_model
from emberge.plugins import Plugins
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.references import (
    list_kept_checkpoints,
    locate_adapter,
    locate_file,
    locate_model,
)
from emberge.results import Input, OutFolder, read_artifact


@dataclass(frozen=True)
class FinishedStep:
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
        self.finished: dict[str, FinishedStep] = {}
        """The finished steps by id, which `$id` means."""
        self._outside: dict[ModelRef, Model] = {}

    def step(self, reference: Reference) -> FinishedStep:
        """Return the finished step that a reference names.

        Raises:
            RecipeError: if no such step is finished.
        """
        name = reference.step
        if name is None:
            raise RecipeError(f"'{reference}' is no step; a step is written ${reference}")
        if name not in self.finished:
            raise RecipeError(f"'{reference}': no step '{name}' is finished before this one")
        return self.finished[name]

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
            try:
                located = locate_model(reference, self.plugins, reference.files)
            except ConnectionError as error:
                raise CheckpointError(f"'{reference}' could not be looked for: {error}") from error
            content = hash_model(located.folder, self.hashes, located.adapter)
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

    def compute_fingerprint(self, step: RecipeStep, seed: int) -> str:
        """Return the hash of what decides a step's result: its options, its inputs' contents, and the seed.

        Raises:
            PluginError: if an option has no stable form.
        """
        content = {
            "kind": step.kind,
            "step": self.describe(step.step),
            "identity": step.step.identity(),
            "seed": seed,
        }
        return hash_value(content)

    def describe(self, value: Any) -> Any:
        """Return a component and all its parts as JSON values.

        Each component includes its full name, its `revision` and, if it is of a bare file, its content.
        References and data entries have the hashes of their contents.
        """
        return to_plain(value, self._describe_leaf, self._describe_record, (Reference,))

    def _describe_record(self, item: Any, inner: Callable[[Any], Any]) -> dict[str, Any]:
        described = {"is": type(item).__name__, "revision": getattr(item, "revision", 1)}
        with suppress(PluginError):  # a part of a component's options was added by no plugin
            component = self.plugins.find_component(type(item))
            described["is"] = component.full_name
            if component.source.content:
                described["content"] = component.source.content
        options = {name: inner(value) for name, value in walk_fields(item)}
        if isinstance(item, DataEntry):
            options["path"] = self._describe_entry(item)
        return {**described, "options": options}

    def _describe_leaf(self, item: Any) -> Any:
        if isinstance(item, Reference):
            return self._describe_reference(item)
        if isinstance(item, bool | str | int) or item is None:
            return item
        if isinstance(item, float):
            return int(item) if item.is_integer() else item
        if isinstance(item, PerTensor):
            return [[e.filter, e.value] for e in item.entries]
        if isinstance(item, Path):
            return HashCache().of_tree(item) if item.exists() else item.name
        raise PluginError(
            f"an option has a {type(item).__name__}, which has no stable hash; "
            "options are numbers, text, lists, mappings, references and dataclasses of these"
        )

    def _describe_reference(self, reference: Reference) -> Any:
        if reference.step is not None:
            fingerprint = self.step(reference).fingerprint
            described = {"step": reference.step, "part": reference.part, "made": fingerprint}
            adapter = self._locate_adapter(reference)
            if adapter is not None:
                described["adapter"] = hash_model(adapter, self.hashes)
            return described
        if isinstance(reference, ModelRef):
            return {"model": self.model(reference).fingerprint}
        if isinstance(reference, DataRef | FileRef):
            return {"content": self._hash_data(locate_file(reference), ())}
        raise RecipeError(f"'{reference}' names no step of the recipe")

    def _describe_entry(self, entry: DataEntry) -> Any:
        if entry.path is None:
            return None
        if entry.path.step is not None or not entry.only:
            return self._describe_reference(entry.path)
        return {"content": self._hash_data(locate_file(entry.path), entry.only)}

    def list_inputs(self, value: Any) -> list[Input]:
        """Return a step's inputs, each with the hash of its content, as `artifact.json` keeps them."""
        parts = (part for _, part in walk_parts(value, DataEntry, Reference))
        inputs = (
            input_
            for part in parts
            if isinstance(part, DataEntry | Reference)
            for input_ in self._list_inputs(part)
        )
        return list(dict.fromkeys(inputs))

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
            yield Input(text, name, hash_value([text, entry.subset, entry.revision]), "hub data")
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

    def _build_model(
        self, name: str, folder: Path, result: FinishedStep, adapter: Path | None
    ) -> Model:
        if result.artifact.kind != "model":
            raise CheckpointError(f"step '{name}' made {result.artifact.kind}, and no model")
        artifact = read_artifact(folder) or result.artifact
        if result.adapts is not None:
            if adapter is not None:
                raise CheckpointError(f"step '{name}' made an adapter, which takes no other on it")
            folder, adapter = self.model(result.adapts).folder, folder
        content = hash_model(folder, self.hashes, adapter)
        return Model(name, folder, content, artifact, adapter)

    def _locate_adapter(self, reference: Reference) -> Path | None:
        if not isinstance(reference, ModelRef) or reference.adapter is None:
            return None
        try:
            return locate_adapter(reference, self.plugins)
        except ConnectionError as error:
            raise CheckpointError(f"'{reference}' could not be looked for: {error}") from error

    def _hash_data(self, path: Path, only: Sequence[str]) -> str:
        parts = [self.hashes.of_tree(path)]
        if path.is_file() and path.suffix in (".yaml", ".yml"):
            parts += [self.hashes.of_tree(p) for p in _list_catalogued_files(path, only)]
        return hash_value(parts)


def find_targets(
    recipe: Recipe, out_folder: OutFolder, plugins: Plugins, finished: Mapping[str, str]
) -> Targets:
    """Return the references' targets for a process that runs one step, with the `finished` steps.

    `finished` maps a step's id to the fingerprint of its result.
    """
    targets = Targets(plugins, HashCache(find_user_cache()))
    steps = {recipe_step.id: recipe_step.step for recipe_step in recipe.steps}
    for name, fingerprint in finished.items():
        folder = out_folder.locate_result(name, fingerprint)
        artifact = read_artifact(folder)
        if artifact is not None:  # visible on this machine; otherwise a step that needs it says so
            adapts = steps[name].find_adapted_model()
            targets.finished[name] = FinishedStep(folder, artifact, fingerprint, adapts)
    return targets


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

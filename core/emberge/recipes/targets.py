"""The targets of a recipe's references: results of finished steps, models and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge.contracts import Artifact, DataRef, FileRef, Model, ModelRef, Reference
from emberge.errors import CheckpointError, RecipeError
from emberge.files import find_user_cache
from emberge.hashes import HashCache
from emberge.model_folder import hash_model
from emberge.plugins import Plugins
from emberge.recipes.recipe import Recipe
from emberge.recipes.references import (
    list_kept_checkpoints,
    locate_adapter,
    locate_file,
    locate_model,
)
from emberge.results import OutFolder, read_artifact, require_sound_weights


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
            CheckpointError: if there is no model, it cannot be searched for, or its weights were changed.
        """
        if reference.step is not None:
            return self._list_produced_models(reference)
        if reference not in self._outside or not self._outside[reference].folder.is_dir():
            try:
                located = locate_model(reference, self.plugins, reference.files)
            except ConnectionError as error:
                of = "the base of " if Path(reference.main).is_dir() else ""
                raise CheckpointError(f"{of}'{reference}' was not found: {error}") from error
            content = hash_model(located.folder, self.hashes, located.adapter)
            artifact = read_artifact(located.adapter or located.folder)
            for folder in filter(None, (located.folder, located.adapter)):
                require_sound_weights(folder, self.hashes)
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

    def _list_produced_models(self, reference: ModelRef) -> list[Model]:
        result = self.step(reference)
        adapter = self.locate_adapter(reference)
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

    def locate_adapter(self, reference: Reference) -> Path | None:
        """Return the folder of the adapter in `model+adapter`; None for another reference.

        Raises:
            CheckpointError: if the adapter is missing, or cannot be searched for.
        """
        if not isinstance(reference, ModelRef) or reference.adapter is None:
            return None
        try:
            return locate_adapter(reference, self.plugins)
        except ConnectionError as error:
            raise CheckpointError(f"'{reference}' was not found: {error}") from error


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

"""The check of a recipe from headers, configs and first rows alone: every problem at once, in seconds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from emberge.component_parts import parts_of
from emberge.contracts import (
    Backbone,
    DataRef,
    Expected,
    FileRef,
    ModelRef,
    Reader,
    Reference,
    describe_kinds,
)
from emberge.errors import CheckpointError, EmbergeError, Problem, RecipeError
from emberge.interpreter import set_torch_defaults
from emberge.model_folder import (
    Checkpoint,
    count_parameters,
    other_format,
)
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.parse.shipped import to_recipe
from emberge.recipes.recipe import Recipe, RecipeStep, UnsoundStep, references
from emberge.recipes.references import (
    LocatedModel,
    is_folder,
    locate_adapter,
    locate_file,
    locate_model,
)
from emberge.recipes.run.workspace import build_installed_readers
from emberge.tensor_files import WEIGHTS

Severity = Literal["error", "warning", "unseen"]


@dataclass(frozen=True)
class Note:
    """A text that a check shows for a step besides its problems, such as a plan or a first example."""

    step: str
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class CheckReport:
    """The problems and notes of a check, and the disk that it expects a run to need.

    `disk` is the size in bytes of the models that steps write, as far as it is known; `unsized` names the
    models and steps whose size is not known.
    """

    problems: tuple[Problem, ...] = ()
    notes: tuple[Note, ...] = ()
    disk: int = 0
    unsized: tuple[str, ...] = ()

    def of(self, severity: Severity) -> tuple[Problem, ...]:
        """Return the problems of one severity."""
        return tuple(p for p in self.problems if p.severity == severity)

    @property
    def unseen_places(self) -> Mapping[str, Sequence[str]]:
        """Map the message about each input that could not be checked to the places that name the input."""
        places_by_message: dict[str, list[str]] = {}
        for problem in self.of("unseen"):
            places_by_message.setdefault(problem.message, []).append(problem.where)
        return {
            message: list(dict.fromkeys(places)) for message, places in places_by_message.items()
        }

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that stop a run before it starts."""
        return self.of("error")

    def raise_errors(self) -> None:
        """Raise an error if the check found errors.

        Raises:
            RecipeError: if there are errors; has all of them.
        """
        if self.errors:
            raise RecipeError(self.errors)


def check_recipe(
    recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str],
    plugins: Plugins | None = None,
    *,
    deep: bool = True,
    out: Path | None = None,
    sizes: bool = False,
) -> CheckReport:
    """Check a recipe without loading any weights, and return every problem.

    `recipe` may also be Python data, a file, or the name of a shipped recipe, as in `run_recipe`. Of a draft,
    the problems of reading are among those returned; of its unsound steps, only references are checked.

    `plugins` defaults to all that are installed. Results of an earlier run in `out` are read, if there are
    any. With `deep=False`, the network is not used.
    An input that could not be examined, such as a hub id without a network, is a problem with `unseen`.
    With `sizes`, the parameters of models are counted, for `disk`.

    Raises:
        RecipeError: if there is no such recipe, it is no recipe, or a plugin is missing that it needs.
    """
    set_torch_defaults()
    plugins = plugins or load_plugins()
    recipe = to_recipe(recipe, plugins)
    lookup = _Lookup(recipe, plugins, deep, out)
    problems: list[Problem] = [*recipe.problems]
    for unsound in recipe.unsound:
        problems += _check_unsound(unsound, lookup)
    notes: list[Note] = []
    disk, unsized = 0, dict[str, None]()
    for step in recipe.steps:
        context = _StepCheck(step, lookup)
        problems += context.problems()
        notes += context.notes
        for model, size in context.disk if sizes else ():
            source, count = lookup.size(model)
            disk += size * (count or 0)
            unsized |= {} if count else {source: None}
    return CheckReport(
        tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(notes)), disk, tuple(unsized)
    )


def _check_unsound(step: UnsoundStep, lookup: _Lookup) -> Iterator[Problem]:
    """Yield the problems of the models and files that a step names whose other options are not sound."""
    for reference, where in step.references:
        problem = lookup.find_problem(reference)
        if problem is not None:
            yield dataclasses.replace(problem, where=where)


@dataclass
class _Lookup:
    """The look-up that all steps of a check share; it locates each model from outside the recipe once."""

    recipe: Recipe
    plugins: Plugins
    deep: bool
    out: Path | None = None

    def __post_init__(self) -> None:
        self.expected: dict[str, Expected] = {}
        self._seen: dict[tuple[str, Path], LocatedModel | Problem] = {}
        self._sizes: dict[tuple[str, Path], int | None] = {}
        self._faults: dict[tuple[Path, Path | None], Sequence[str]] = {}
        self._look_for_all()

    @cached_property
    def readers(self) -> tuple[Reader, ...]:
        return build_installed_readers(self.plugins)

    def model(self, reference: ModelRef) -> LocatedModel | Problem:
        """Return a located model from outside the recipe, or the problem with it (without `file:line`).

        For `$step+adapter`, the located model has only its `adapter`, as the step's model does not exist yet.
        """
        key = (reference.text, reference.folder)
        if key not in self._seen:
            self._seen[key] = self._locate_model(reference)
        return self._seen[key]

    def find_problem(self, reference: Reference) -> Problem | None:
        """Return why a model's or a file's reference leads nowhere, without `file:line`; else None."""
        if isinstance(reference, ModelRef):
            located = self.model(reference)
            if isinstance(located, Problem):
                return located
            missing = find_missing_weights(reference, located)
            return Problem(missing) if missing is not None else None
        if isinstance(reference, DataRef | FileRef):
            try:
                locate_file(reference)
            except EmbergeError as error:
                return Problem(str(error))
        return None

    def size(self, reference: ModelRef) -> tuple[str, int | None]:
        """Return the model or step that decides a model's size, and its number of parameters, if known."""
        while reference.step is not None:
            expected = self.expected.get(reference.step)
            if expected is None or not expected.artifact.parents:
                return f"${reference.step}", None
            reference = ModelRef(expected.artifact.parents[0], reference.folder)
        key = (reference.text, reference.folder)
        if key not in self._sizes:
            self._sizes[key] = self._count_parameters(reference)
        return reference.main, self._sizes[key]

    def _count_parameters(self, reference: ModelRef) -> int | None:
        located = self.model(reference)
        if not isinstance(located, LocatedModel):
            return None
        try:
            return count_parameters(Checkpoint(located.folder))
        except EmbergeError:
            return None  # a step's own check reports the model

    def faults_of(self, folder: Path, adapter: Path | None) -> Sequence[str]:
        """Return the reasons why a model cannot be opened; each model is examined only once."""
        from emberge.merging import whole_faults

        if (folder, adapter) not in self._faults:
            self._faults[folder, adapter] = whole_faults(folder, adapter)
        return self._faults[folder, adapter]

    def _look_for_all(self) -> None:
        """Locate all outside models in parallel, so that a silent network costs its timeout only once."""
        used_references = [r for step in self.recipe.steps for r in references(step.step)]
        used_references += [r for step in self.recipe.unsound for r, _ in step.references]
        references_by_text = {
            (r.text, r.folder): r
            for r in used_references
            if isinstance(r, ModelRef) and r.step is None
        }
        with ThreadPoolExecutor(8, "locate") as threads:
            results = threads.map(self._locate_model, references_by_text.values())
            self._seen.update(zip(references_by_text, results, strict=True))

    def _locate_model(self, reference: ModelRef) -> LocatedModel | Problem:
        if not self.deep and _is_elsewhere(reference.main):
            return Problem(f"'{reference}' was not looked for", severity="unseen")
        try:
            if reference.step is not None:
                adapter = locate_adapter(reference, self.plugins, "metadata")
                return LocatedModel(reference.text, adapter, adapter)
            return locate_model(reference, self.plugins, "metadata")
        except ConnectionError as error:
            return Problem(f"'{reference}' could not be seen: {error}", severity="unseen")
        except EmbergeError as error:
            return Problem(str(error))


class _StepCheck:
    """The check of one step (a `Preflight`): it resolves references and collects problems and notes."""

    def __init__(self, step: RecipeStep, lookup: _Lookup) -> None:
        self._step = step
        self._lookup = lookup
        self._own: list[Problem] = []
        self._missing_model = False  # then no plan can be made of the others
        self.notes: list[Note] = []
        self.disk: list[tuple[ModelRef, int]] = []

    @property
    def deep(self) -> bool:
        return self._lookup.deep

    @property
    def readers(self) -> Sequence[Reader]:
        return self._lookup.readers

    @property
    def plugins(self) -> Plugins:
        return self._lookup.plugins

    def where(self, option: str = "") -> str:
        """Return the place of the option, or of the nearest enclosing option that has a place."""
        lines, path = self._step.lines, option
        while path:
            if path in lines:
                return lines[path]
            path = path.rpartition(".")[0]
        return self._step.where

    def model(self, reference: ModelRef, *, weights: bool = True) -> Path | None:
        if reference.step is not None and reference.adapter is None:
            return None
        located = self._lookup.model(reference)
        if isinstance(located, LocatedModel):
            missing = find_missing_weights(reference, located) if weights else None
            if missing is not None:
                self._record_reference_problem(Problem(missing), reference)
            return None if reference.step is not None else located.folder
        self._record_reference_problem(located, reference)
        return None

    def whole_model(self, reference: ModelRef) -> Path | None:
        folder = self.model(reference)
        if folder is not None:
            for fault in self._lookup.faults_of(folder, self.adapter(reference)):
                self._record_problem(Problem(fault), reference)
        return folder

    def adapter(self, reference: ModelRef) -> Path | None:
        if reference.adapter is None and reference.step is not None:
            return None
        located = self._lookup.model(reference)
        return located.adapter if isinstance(located, LocatedModel) else None

    def data(self, reference: DataRef | FileRef) -> Path | None:
        if reference.step is not None:
            return None
        try:
            return locate_file(reference)
        except EmbergeError as error:
            self._record_reference_problem(Problem(str(error)), reference)
            return None

    def problem(self, message: str, option: str = "") -> Problem:
        return Problem(message, self.where(option))

    def warning(self, message: str, option: str = "") -> Problem:
        return Problem(message, self.where(option), "warning")

    def note(self, title: str, lines: Sequence[str]) -> None:
        self.notes.append(Note(self._step.id, title, tuple(lines)))

    def expect(self, expected: Expected) -> None:
        self._lookup.expected[self._step.id] = expected

    def expected(self, reference: Reference) -> Expected | None:
        return self._lookup.expected.get(reference.step or "")

    def expect_disk(self, model: ModelRef, size: int) -> None:
        self.disk.append((model, size))

    def problems(self) -> list[Problem]:
        """Return the problems of the step's references, then those found by the step's own check."""
        for reference in references(self._step.step):
            self._check_reference(reference)
        self._own += self._list_unread_kinds()
        try:
            step_problems = list(self._step.step.check(self))
        except ConnectionError as error:
            step_problems = [Problem(str(error), self._step.where, "unseen")]
        except RecipeError as error:
            step_problems = list(error.problems)
        except EmbergeError as error:
            step_problems = [Problem(str(error), self._step.where)]
        if self._missing_model:
            self.notes.clear()
        messages = {problem.message for problem in self._own}
        return [
            *self._own,
            *(problem for problem in step_problems if problem.message not in messages),
        ]

    def _list_unread_kinds(self) -> Iterator[Problem]:
        """Yield a problem for each encoder whose kind of embedding the step cannot use."""
        step, kind = self._step.step, self._step.kind.rpartition(":")[2]
        for option, part in parts_of(step, Backbone, Reference):
            if isinstance(part, Backbone) and part.kind not in step.embedding_kinds:
                yield self.problem(
                    f"{type(part).__name__} gives {describe_kinds({part.kind})}, and {kind} needs "
                    f"{describe_kinds(step.embedding_kinds)}; name a model and a backbone of that kind",
                    option,
                )

    def _check_reference(self, reference: Reference) -> None:
        if isinstance(reference, ModelRef):
            self.model(reference, weights=False)
        elif isinstance(reference, DataRef | FileRef):
            self.data(reference)

    def _record_reference_problem(self, problem: Problem, reference: Reference) -> None:
        """Record a problem or warning about a reference."""
        self._missing_model |= isinstance(reference, ModelRef) and problem.severity == "error"
        self._record_problem(problem, reference)

    def _record_problem(self, problem: Problem, reference: Reference) -> None:
        """Record a problem at the option that names a reference."""
        where = self.where(_find_option(reference, self._step.whole or self._step.step))
        self._own.append(dataclasses.replace(problem, where=where))


def _is_elsewhere(text: str) -> bool:
    """Return whether a model is searched for in the network."""
    return "://" in text or (not is_folder(text) and ":" not in text)


def _find_option(reference: Reference, value: Any) -> str:
    """Return the path of the option that names a reference, such as `models.0.model`; "" if none does."""
    names = (path for path, part in parts_of(value, Reference) if part == reference)
    return next(names, "")


ADAPTER_WEIGHTS = "adapter_model.safetensors"  # peft's name


def find_missing_weights(reference: ModelRef, found: LocatedModel) -> str | None:
    """Return the problem if the model's or the adapter's folder has no weights, else None.

    For a model on the hub, only metadata may have been downloaded yet. Damaged weights are found elsewhere.
    """
    model = (
        _describe_missing_model(reference.main, found.folder) if is_folder(reference.main) else None
    )
    text = reference.adapter or reference.main
    if model is not None or found.adapter is None or not is_folder(text):
        return model
    trunk = Checkpoint(found.adapter).trunk
    has_weights = any(trunk.glob(f"{Path(ADAPTER_WEIGHTS).stem}.*"))
    return None if has_weights else _describe_missing_weights(text, ADAPTER_WEIGHTS, found.adapter)


def _describe_missing_model(text: str, folder: Path) -> str | None:
    checkpoint = Checkpoint(folder)
    try:
        if checkpoint.has_weights:
            return None
        return other_format(checkpoint.trunk) or _describe_missing_weights(
            text, WEIGHTS, checkpoint.trunk
        )
    except CheckpointError:
        return None


def _describe_missing_weights(text: str, file: str, folder: Path) -> str:
    return (
        f"'{text}' has no weights: there is no {file} in {folder}; get it, or name another folder"
    )

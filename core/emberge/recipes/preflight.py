"""The check of a recipe from headers, configs and first rows alone: every problem at once, in seconds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from emberge.component_parts import walk_parts
from emberge.contracts import (
    Backbone,
    DataRef,
    Expected,
    FileRef,
    ModelRef,
    NoteLines,
    Reader,
    Reference,
    describe_kinds,
)
from emberge.errors import EmbergeError, Problem, RecipeError, Severity
from emberge.interpreter import set_torch_defaults
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.parse.parse import convert_to_recipe
from emberge.recipes.recipe import Recipe, RecipeStep, find_references
from emberge.recipes.references import (
    LocatedModel,
    describe_missing_weights,
    locate_adapter,
    locate_file,
    locate_model,
)


@dataclass(frozen=True)
class Note:
    """A text that a check shows for a step besides its problems, such as a plan or a first example."""

    step: str
    title: str
    lines: tuple[str, ...]


class NoteEntry(NamedTuple):
    """A note whose lines may still have to be computed, by a call."""

    step: str
    title: str
    lines: NoteLines


@dataclass(frozen=True)
class CheckReport:
    """The problems and notes of a check, and the plans that steps keep for their runs, by step."""

    problems: tuple[Problem, ...] = ()
    plans: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    note_entries: Sequence[NoteEntry] = ()

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """The notes, equal ones of a step only once."""
        notes = [
            Note(step, title, tuple(lines() if callable(lines) else lines))
            for step, title, lines in self.note_entries
        ]
        return tuple(dict.fromkeys(notes))

    def of(self, severity: Severity) -> tuple[Problem, ...]:
        """Return the problems of one severity."""
        return tuple(p for p in self.problems if p.severity == severity)

    @property
    def unseen_places(self) -> Mapping[str, Sequence[str]]:
        """Map the message about each input that could not be checked to the places that name the input."""
        places: dict[str, dict[str, None]] = {}
        for problem in self.of("unseen"):
            places.setdefault(problem.message, {})[problem.where] = None
        return {message: [*option_places] for message, option_places in places.items()}

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that stop a run before it starts."""
        return self.of("error")

    def raise_errors(self) -> None:
        """Raise an error if the check found errors.

        Raises:
            RecipeError: if there are errors; has all of them.
        """
        errors = self.of("error")
        if errors:
            raise RecipeError(errors)


def check_recipe(
    recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str],
    plugins: Plugins | None = None,
    *,
    deep: bool = True,
) -> CheckReport:
    """Check a recipe without loading any weights, and return every problem.

    `recipe` may also be Python data, a file, or the name of a shipped recipe, as in `run_recipe`. `plugins`
    defaults to all that are installed. With `deep=False`, the network is not used. An input that could not be
    examined, such as a hub id without a network, is a problem with `unseen`. If an option is wrong, all wrong
    options are the report's problems, and inputs are not examined.
    """
    set_torch_defaults()
    plugins = plugins or load_plugins()
    try:
        recipe = convert_to_recipe(recipe, plugins)
    except RecipeError as error:
        return CheckReport(error.problems)
    inputs = _Inputs(recipe, plugins, deep)
    inputs.locate_all()
    problems: list[Problem] = []
    notes: list[NoteEntry] = []
    for step in recipe.steps:
        context = _StepCheck(step, inputs)
        problems += context.find_problems()
        notes += context.notes
    return CheckReport(tuple(dict.fromkeys(problems)), inputs.plans, notes)


@dataclass
class _Inputs:
    """The inputs of all steps of a check; each model from outside the recipe is located once."""

    recipe: Recipe
    plugins: Plugins
    deep: bool

    def __post_init__(self) -> None:
        self.expected: dict[str, Expected] = {}
        self.plans: dict[str, Any] = {}
        self._located: dict[tuple[str, Path], LocatedModel | Problem] = {}
        self._loading_problems: dict[tuple[Path, Path | None], Sequence[str]] = {}

    def locate_all(self) -> None:
        """Locate all models from outside in parallel: a silent network costs its timeout only once."""
        outside = {
            (r.text, r.folder): r
            for step in self.recipe.steps
            for r in find_references(step.step)
            if isinstance(r, ModelRef) and r.step is None
        }
        with ThreadPoolExecutor(8, "locate") as threads:
            located = threads.map(self._locate, outside.values())
            self._located.update(zip(outside, located, strict=True))

    @cached_property
    def readers(self) -> Sequence[Reader]:
        return self.plugins.build_every("reader")

    def locate(self, reference: ModelRef) -> LocatedModel | Problem:
        """Return a located model from outside the recipe, or the problem with it (without `file:line`).

        For `$step+adapter`, the located model has only its `adapter`, as the step's model does not exist yet.
        """
        key = (reference.text, reference.folder)
        if key not in self._located:
            self._located[key] = self._locate(reference)
        return self._located[key]

    def find_loading_problems(self, folder: Path, adapter: Path | None) -> Sequence[str]:
        """Return the reasons why a model cannot be opened; each model is examined only once."""
        from emberge.merging import describe_loading_problems

        if (folder, adapter) not in self._loading_problems:
            self._loading_problems[folder, adapter] = describe_loading_problems(folder, adapter)
        return self._loading_problems[folder, adapter]

    def _locate(self, reference: ModelRef) -> LocatedModel | Problem:
        try:
            if reference.step is not None:
                adapter = locate_adapter(reference, self.plugins, "metadata", deep=self.deep)
                return LocatedModel(reference.text, adapter, adapter)
            return locate_model(reference, self.plugins, "metadata", deep=self.deep)
        except ConnectionError as error:
            return Problem(f"'{reference}' could not be seen: {error}", severity="unseen")
        except EmbergeError as error:
            return Problem(str(error))


class _StepCheck:
    """The check of one step (a `Preflight`): it resolves references and collects problems and notes."""

    def __init__(self, step: RecipeStep, inputs: _Inputs) -> None:
        self._step, self._inputs = step, inputs
        self.deep, self.plugins = inputs.deep, inputs.plugins
        self._reference_problems: list[Problem] = []
        self._lacks_model = False  # then no plan can be made of the others
        self.notes: list[NoteEntry] = []

    @property
    def readers(self) -> Sequence[Reader]:
        return self._inputs.readers

    def where(self, option: str = "") -> str:
        """Return the place of the option, or of the nearest enclosing option that has a place.

        An option of a component of the step, such as an evaluator's, is found if only one has this name.
        """
        lines = self._step.lines
        nested = [one for one in lines if one.endswith(f".{option}")]
        path = nested[0] if option not in lines and len(nested) == 1 else option
        while path:
            if path in lines:
                return lines[path]
            path = path.rpartition(".")[0]
        return self._step.where

    def model(self, reference: ModelRef, *, weights: bool = True) -> Path | None:
        if reference.step is not None and reference.adapter is None:
            return None
        located = self._inputs.locate(reference)
        if isinstance(located, Problem):
            self._note_reference(located, reference)
            return None
        missing = describe_missing_weights(reference, located) if weights else None
        if missing is not None:
            self._note_reference(Problem(missing), reference)
        return None if reference.step is not None else located.folder

    def whole_model(self, reference: ModelRef) -> Path | None:
        folder = self.model(reference)
        if folder is not None:
            for message in self._inputs.find_loading_problems(folder, self.adapter(reference)):
                problem = Problem(message, self._find_option_place(reference))
                self._reference_problems.append(problem)
        return folder

    def adapter(self, reference: ModelRef) -> Path | None:
        if reference.adapter is None and reference.step is not None:
            return None
        located = self._inputs.locate(reference)
        return located.adapter if isinstance(located, LocatedModel) else None

    def adapted_model(self, reference: ModelRef) -> ModelRef | None:
        named = (one.step for one in self._inputs.recipe.steps if one.id == reference.step)
        return next((step.find_adapted_model() for step in named), None)

    def name(self, reference: ModelRef) -> str:
        located = None if reference.step is not None else self._inputs.locate(reference)
        return located.name if isinstance(located, LocatedModel) else reference.text

    def data(self, reference: DataRef | FileRef) -> Path | None:
        if reference.step is not None:
            return None
        try:
            return locate_file(reference)
        except EmbergeError as error:
            self._note_reference(Problem(str(error)), reference)
            return None

    def problem(self, message: str, option: str = "") -> Problem:
        return Problem(message, self.where(option))

    def warning(self, message: str, option: str = "") -> Problem:
        return Problem(message, self.where(option), "warning")

    def note(self, title: str, lines: NoteLines) -> None:
        self.notes.append(NoteEntry(self._step.id, title, lines))

    def keep_plan(self, plan: Any) -> None:
        self._inputs.plans[self._step.id] = plan

    def expect(self, expected: Expected) -> None:
        self._inputs.expected[self._step.id] = expected

    def expected(self, reference: Reference) -> Expected | None:
        return self._inputs.expected.get(reference.step or "")

    def find_problems(self) -> list[Problem]:
        """Return the problems of the step's references, then those found by the step's own check."""
        for reference in find_references(self._step.step):
            if isinstance(reference, ModelRef):
                self.model(reference, weights=False)
            elif isinstance(reference, DataRef | FileRef):
                self.data(reference)
        kind_problems = list(self._find_kind_problems())
        try:
            step_problems = list(self._step.step.check(self))
        except ConnectionError as error:
            step_problems = [Problem(str(error), self._step.where, "unseen")]
        except RecipeError as error:
            step_problems = list(error.problems)
        except EmbergeError as error:
            step_problems = [Problem(str(error), self._step.where)]
        if self._lacks_model:
            self.notes.clear()
        problems = [*self._reference_problems, *kind_problems]
        messages = {problem.message for problem in problems}
        return problems + [problem for problem in step_problems if problem.message not in messages]

    def _find_kind_problems(self) -> Iterator[Problem]:
        """Yield a problem for each encoder whose kind of embedding the step cannot use."""
        step, kind = self._step.step, self._step.kind.rpartition(":")[2]
        for option, part in walk_parts(step, Backbone, Reference):
            if isinstance(part, Backbone) and part.kind not in step.embedding_kinds:
                yield self.problem(
                    f"{type(part).__name__} gives {describe_kinds({part.kind})}, and {kind} needs "
                    f"{describe_kinds(step.embedding_kinds)}; name a model and a backbone of that kind",
                    option,
                )

    def _note_reference(self, problem: Problem, reference: Reference) -> None:
        """Note the problem that a reference leads nowhere, at the option that names the reference."""
        self._lacks_model |= isinstance(reference, ModelRef) and problem.severity == "error"
        where = self._find_option_place(reference)
        self._reference_problems.append(dataclasses.replace(problem, where=where))

    def _find_option_place(self, reference: Reference) -> str:
        """Return `file:line` of the option that names a reference, such as `models.0.model`."""
        parts = walk_parts(self._step.whole or self._step.step, Reference)
        return self.where(next((path for path, part in parts if part == reference), ""))

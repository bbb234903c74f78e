"""A step that was expanded into parts may have a step of its own that gathers what they made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from emberge import (
    Artifact,
    FileRef,
    Plugins,
    RecipeError,
    Step,
    StepRef,
    Workspace,
    hookimpl,
    parse_recipe,
    run_recipe,
)
from emberge.recipes import Recipe

from tests.support.result_folders import folders


@dataclass(frozen=True, kw_only=True)
class Square(Step):
    """Square a number."""

    number: int

    def run(self, workspace: Workspace) -> Artifact:
        return Artifact("file", details={"square": self.number**2})


@dataclass(frozen=True, kw_only=True)
class SumOfSquares(Step):
    """Add up squares, each of which is a step of its own."""

    numbers: tuple[int, ...]
    _parts: dict[str, StepRef] = field(default_factory=dict)

    def expand(self) -> Mapping[str, Step]:
        return {f"of={n}": Square(number=n) for n in self.numbers} if self.numbers else {"": self}

    def gather(self, parts: Mapping[str, StepRef]) -> Step:
        return dataclasses.replace(self, _parts=dict(parts))

    def run(self, workspace: Workspace) -> Artifact:
        found = [workspace.artifact(one)[1].details["square"] for one in self._parts.values()]
        return Artifact("file", details={"sum": sum(found)})


@dataclass(frozen=True, kw_only=True)
class Use(Step):
    """Read one file."""

    file: FileRef

    def run(self, workspace: Workspace) -> Artifact:
        return Artifact("file", details=dict(workspace.artifact(self.file)[1].details))


def plugins() -> Plugins:
    module = ModuleType("summing")

    @hookimpl
    def register_steps() -> Mapping[str, type[Step]]:
        return {"square": Square, "sum_of_squares": SumOfSquares, "use": Use}

    vars(module)["register_steps"] = register_steps
    found = Plugins()
    found.register(module, "summing", "summing", "1.0")
    return found


def read(text: str) -> Recipe:
    return parse_recipe(text, plugins())


TEXT = "steps: {all: {sum_of_squares: {numbers: [1, 2, 3]}}, then: {use: {file: $all}}}"


def test_the_parts_come_first_and_the_gathering_step_has_the_id() -> None:
    recipe = read(TEXT)
    assert [step.id for step in recipe.steps] == ["all.of=1", "all.of=2", "all.of=3", "all", "then"]
    assert recipe.steps[3].needs == ("all.of=1", "all.of=2", "all.of=3")
    assert recipe.steps[4].needs == ("all",)


def test_what_the_parts_made_is_gathered(tmp_path: Path) -> None:
    run_recipe(read(TEXT), tmp_path / "out", plugins(), quiet=True)
    for step in ("all", "then"):
        assert '"sum": 14' in (tmp_path / "out" / step / "artifact.json").read_text()


def test_one_more_part_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    first = folders(run_recipe(read(TEXT), tmp_path / "out", plugins(), quiet=True))
    before = {name: folder.resolve() for name, folder in first.items()}
    more = read(TEXT.replace("[1, 2, 3]", "[1, 2, 3, 5]"))
    again = folders(run_recipe(more, tmp_path / "out", plugins(), quiet=True))
    same = {name for name in before if again[name].resolve() == before[name]}
    assert same == {"all.of=1", "all.of=2", "all.of=3"}
    assert '"sum": 39' in (tmp_path / "out" / "then" / "artifact.json").read_text()


def test_a_step_of_one_part_gathers_nothing() -> None:
    assert [step.id for step in read("steps: {all: {sum_of_squares: {numbers: []}}}").steps] == [
        "all"
    ]


def test_instances_of_a_foreach_gather_their_own() -> None:
    text = "steps: {all: {foreach: {n: [1, 2]}, sum_of_squares: {numbers: [$n, 7]}}}"
    steps = {step.id: step.needs for step in read(text).steps}
    assert steps["all.n=1"] == ("all.n=1.of=1", "all.n=1.of=7")
    assert steps["all.n=2"] == ("all.n=2.of=2", "all.n=1.of=7")  # what they share is run once
    assert len(steps) == 5


def test_the_parts_are_no_option_and_no_group() -> None:
    with pytest.raises(RecipeError, match="has no option '_parts'"):
        read("steps: {all: {sum_of_squares: {numbers: [1], _parts: {}}}}")

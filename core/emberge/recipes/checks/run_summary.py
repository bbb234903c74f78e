"""Summary of a run as Markdown, for a job of CI: its outcome, the tables of its results, and what it took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from emberge.errors import EmbergeError, RequirementError
from emberge.recipes.checks.status import StepStatus, result_table, status
from emberge.recipes.recipe import Recipe
from emberge.results import OutFolder, read_artifact
from emberge.wording import human_size, prose, table_lines


def run_summary(out: Path, recipe: Recipe, error: BaseException | None) -> str:
    """Return the summary of a recipe's run into `out`, which ended with `error` or, if None, well."""
    try:
        steps = {step.id: step for step in status(out).steps}
    except EmbergeError:
        steps = {}  # it ended before it began
    place = OutFolder(Path(out))
    shown = [steps[step.id] for step in recipe.steps if step.id in steps]
    lines = [*_outcome(recipe, error), *_tables(shown, place), *_costs(shown)]
    return "\n".join(lines).strip() + "\n"


def _outcome(recipe: Recipe, error: BaseException | None) -> Iterator[str]:
    name = prose(recipe.path.name if recipe.path is not None else "recipe")
    if error is None:
        yield f"## {name}: done"
    elif isinstance(error, RequirementError):
        yield f"## {name}: a requirement is not met"
    else:
        yield f"## {name}: failed"
    yield ""
    if error is not None:
        yield from (
            f"- {prose(line)}" for line in str(error).splitlines() or [type(error).__name__]
        )
        yield ""


def _tables(steps: list[StepStatus], place: OutFolder) -> Iterator[str]:
    """Yield the table of each finished result that has one."""
    for step in steps:
        link = place.link(step.id)
        artifact = read_artifact(link) if step.state == "done" else None
        if artifact is not None and (table := result_table(link, artifact)):
            yield from (f"### {prose(step.id)}", "", table, "")


def _costs(steps: list[StepStatus]) -> Iterator[str]:
    if not steps:
        return
    rows = [
        [
            step.id,
            step.kind,
            step.state,
            "–" if step.seconds is None else f"{step.seconds:.0f} s",
            human_size(step.size) if step.size else "–",
        ]
        for step in steps
    ]
    yield from ("### Steps", "")
    yield from table_lines(["step", "kind", "state", "time", "size"], rows, "lllrr")

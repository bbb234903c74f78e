"""The function `adapt`, for scripts and notebooks: an adaptation as one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import StepResult, load_plugins
from emberge.devices import find_machine

from emberge_adapt.adapt_data import read_columns
from emberge_adapt.adapt_outcome import AdaptOutcome
from emberge_adapt.adapt_plan import DEFAULT_MODEL, require_effort
from emberge_adapt.adapt_run import RECIPE_FILE, AdaptRequest, prepare, run_adaptation
from emberge_adapt.recipe_text import MODEL, REPORT, SCORES

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class AdaptResult(os.PathLike[str]):
    """Result of `adapt`: the model, its scores, the report, and the recipe that was run.

    It may stand for the model's folder. As text it is the screen that the command ends with.
    """

    outcome: AdaptOutcome

    def __fspath__(self) -> str:
        """Return the path of the model's folder as text."""
        return str(self.outcome.model_folder)

    def __str__(self) -> str:
        """Return the gain, what was forgotten, size and weights, as lines."""
        return "\n".join(self.outcome.lines()).strip()

    @property
    def model(self) -> str:
        """The folder of the model as text, as recipes and `SentenceTransformer` take it."""
        return self._get_step(MODEL).model

    @property
    def scores(self) -> Any:
        """The scores of base, model and trainings: a pandas `DataFrame`, or a list without pandas."""
        return self._get_step(SCORES).scores

    @property
    def report(self) -> Path:
        """The HTML page of the report."""
        return self._get_step(REPORT).report

    @property
    def recipe(self) -> Path:
        """The file of the recipe that was run, to keep and edit."""
        return self.outcome.out / RECIPE_FILE

    @property
    def has_gain(self) -> bool:
        """True if the model is better than the base on the test by more than chance."""
        return self.outcome.has_gain

    def load(self, **options: Any) -> SentenceTransformer:
        """Load the model without network and remote code; `options` are others of `SentenceTransformer`."""
        return self._get_step(MODEL).load(**options)

    def _get_step(self, name: str) -> StepResult:
        return StepResult(name, self.outcome.out / name)


def adapt(
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    model: str | None = None,
    effort: str = "normal",
    columns: Mapping[str, str] | None = None,
    documents: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    seed: int = 0,
    devices: str | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    quiet: bool = False,
) -> AdaptResult:
    """Adapt a model to data: train, merge with the base, test, report; return the result.

    The arguments are the options of `emberge adapt`; `columns` is `{"query": "question", "document":
    "answer"}`. A call that was interrupted goes on when it is repeated. Without a gain beyond chance the
    result has `has_gain` False, and says what would help.

    Raises:
        DataError: before any work, if the data cannot be used.
        CheckpointError: before any work, if the model does not exist or is no encoder.
        RecipeError: before any work, if an option is wrong, or `out` has another run.
    """
    plugins = load_plugins()
    request = AdaptRequest(
        data=os.fspath(data),
        model=model or DEFAULT_MODEL,
        effort=require_effort(effort),
        columns=read_columns(f"{part}={column}" for part, column in (columns or {}).items()),
        documents=None if documents is None else os.fspath(documents),
        test=None if test is None else os.fspath(test),
        seed=seed,
    )
    outcome = run_adaptation(
        prepare(request, plugins),
        Path(out),
        plugins,
        machine=find_machine(devices, workers, memory),
        quiet=quiet,
    )
    return AdaptResult(outcome)

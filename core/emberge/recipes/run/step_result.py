"""The result of a step, as scripts and notebooks use it: its folder, model, scores and report."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.contracts import Artifact
from emberge.errors import DataError, EmbergeError
from emberge.recipes.recipe import write_path_reference
from emberge.results import read_artifact

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SCORES_FILE = "scores.json"


@dataclass(frozen=True)
class StepResult(os.PathLike[str]):
    """Result of a step: its id in the recipe, and the folder `path`.

    It may stand for its folder: `Path(result)`, a model of `merge([...])`, or a value in a recipe as Python
    data.
    """

    id: str
    """Id of the step; that of an instance has its variables: `members.draw=1`."""
    path: Path
    """Folder of the result, a link in OUT to the current one."""

    def __fspath__(self) -> str:
        """Return the path of the folder as text."""
        return str(self.path)

    @property
    def artifact(self) -> Artifact:
        """The record of the result: kind, number of examples, parents, details and warnings.

        Raises:
            EmbergeError: if the folder is no finished result.
        """
        artifact = read_artifact(self.path)
        if artifact is None:
            raise EmbergeError(f"{self.path} is no finished result; run its recipe again")
        return artifact

    @property
    def model(self) -> str:
        """The folder of the model as text (`./out/boom`), as recipes and `SentenceTransformer` take it.

        Raises:
            EmbergeError: if the step makes no model.
        """
        self._require("model", has_one=self.artifact.kind == "model")
        return write_path_reference(self.path)

    def load(self, **options: Any) -> SentenceTransformer:
        """Load the model without network and remote code; `options` are others of `SentenceTransformer`.

        Raises:
            EmbergeError: if the step makes no model.
        """
        folder = self.model  # refused before the seconds of the import
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(
            folder, local_files_only=True, trust_remote_code=False, **options
        )

    @property
    def scores(self) -> list[dict[str, Any]]:
        """The scores of an evaluation as rows, for tables such as pandas' `DataFrame(result.scores)`.

        Each row has a `model`, a `task` (or mean of tasks), its `domain` and `metric`, the `score`, and the
        ends `low` and `high` of its interval. Scores are shares, so 0.731 is shown as 73.1 in tables.

        Raises:
            EmbergeError: if the step has no scores.
            DataError: if the scores cannot be read.
        """
        path = self.path / SCORES_FILE
        self._require("scores", has_one=path.is_file())
        try:
            return list(json.loads(path.read_text("utf-8"))["records"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: these are no scores; run the evaluation again") from error

    @property
    def report(self) -> Path:
        """The HTML page of a report.

        Raises:
            EmbergeError: if the step makes no report.
        """
        pages = sorted(self.path.glob("*.html"))
        self._require("report", has_one=bool(pages))
        return pages[0]

    def _require(self, wanted: str, *, has_one: bool) -> None:
        if not has_one:
            kind = self.artifact.kind
            raise EmbergeError(
                f"step '{self.id}' has no {wanted}: its result is of the kind '{kind}'"
            )

"""What a requirement says: the claim, the measured figure with a clear sign, and how certain it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import Evaluator, Model, ModelRef, TaskInfo, TaskScore, Units, Workspace
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel
from emberge_evaluate.requirements import Requirement

from tests.support.bench import Bench

TASKS = [
    TaskInfo(name, "retrieval", "ndcg_at_10", fingerprint=f"data of {name}")
    for name in ("code", "papers")
]
QUERIES = np.linspace(0.1, 0.5, 40)
NOISE = np.random.default_rng(1).normal(0, 0.1, len(QUERIES))
NOISE -= NOISE.mean()


@dataclass(frozen=True, kw_only=True)
class Given(Evaluator):
    """Evaluator that gives each query of the model `new` a gain."""

    gain: Any

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return TASKS

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        for task in tasks:
            values = QUERIES + (self.gain if model.name == "new" else 0.0)
            yield TaskScore(task, float(values.mean()), Units("query", "mean", values.tolist()))


def sentence(tmp_path: Path, gain: Any, base: str | None = None, **options: Any) -> str:
    """The text on a claim about a model whose queries have `gain` more than those of the other."""
    bench = Bench(tmp_path)
    for name in ("new", "old"):
        bench.many[f"${name}"] = [Model(name, tmp_path, f"hash-{name}")]
    for key in {"better_than", "not_worse_than"} & {*options}:
        options[key] = (ModelRef(options[key]),)
    step = Evaluate(
        models=(EvaluatedModel(model=ModelRef("$old")), EvaluatedModel(model=ModelRef("$new"))),
        evaluators=(Given(gain=gain),),
        base=ModelRef(base) if base else None,
        elsewhere=("retrieval",) if base else (),
        require=(Requirement(model=ModelRef("$new"), **options),),
    )
    artifact = step.run(bench)
    text = (bench.folder / "scores.md").read_text()
    (line,) = (line[2:] for line in text.splitlines() if line.startswith(("- met", "- NOT MET")))
    assert line.startswith("NOT MET: " if artifact.details["unmet"] else "met: ")
    return line


BETTER = "new is to be better than old"
LOSE = "new is to lose at most {} points against old on tasks elsewhere"
SURE = "(lower bound {} at 95%, must be {})"


@pytest.mark.parametrize(
    ("gain", "options", "met", "claim", "finding"),
    [
        (
            0.005 + NOISE,
            {"better_than": "$old", "tasks": "retrieval"},
            False,
            f"{BETTER} on retrieval",
            f"+0.50 points may be chance {SURE.format('-…', 'above 0')}",
        ),
        (
            0.005,
            {"better_than": "$old", "margin": 1.0},
            False,
            f"{BETTER} by more than 1 points on all",
            f"+0.50 points {SURE.format('+0.50', 'above +1')}",
        ),
        (
            0.02,
            {"better_than": "$old"},
            True,
            f"{BETTER} on all",
            "+2.00 points (lower bound +2.00 at 95%, must be above 0)",
        ),
        (
            0.005 + NOISE,
            {"not_worse_than": "$old", "margin": 0.5},
            False,
            "new is to be at most 0.5 points worse than old on all",
            f"+0.50 points is too uncertain {SURE.format('-…', 'at least -0.5')}",
        ),
        (
            -0.02,
            {"not_worse_than": "$old"},
            False,
            "new is to be not worse than old on all",
            f"-2.00 points {SURE.format('-2.00', 'at least 0')}",
        ),
        (
            0.0033,
            {"forgetting": 3.0},
            True,
            LOSE.format(3),
            "it gained 0.33 points, at worst it gained 0.33 (at 95%)",
        ),
        (
            0.0033 + NOISE,
            {"forgetting": 1.0},
            False,
            LOSE.format(1),
            "it gained 0.33 points, but may have lost … (at 95%)",
        ),
        (
            -0.02,
            {"forgetting": 1.0},
            False,
            LOSE.format(1),
            "it lost 2.00 points, at worst it lost 2.00 (at 95%)",
        ),
    ],
)
def test_a_claim_reads_as_what_is_wanted_and_what_was_found(
    tmp_path: Path, gain: Any, options: dict[str, Any], met: bool, claim: str, finding: str
) -> None:
    line = sentence(tmp_path, gain, "$old" if "forgetting" in options else None, **options)
    expected = re.escape(f"{'met' if met else 'NOT MET'}: {claim}: {finding}")
    assert re.fullmatch(expected.replace("…", r"\d\.\d\d"), line), line

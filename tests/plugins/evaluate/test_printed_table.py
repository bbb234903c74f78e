"""A paper's table in its own layout, with the run's scores beside the printed ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact, Model, ModelRef, RecipeError, StepRef
from emberge.contracts import Reference
from emberge.evaluating import Scores, Task, write_scores
from emberge_evaluate.printed_table import PrintedColumn, PrintedRow, PrintedTable

from tests.support.bench import Bench
from tests.support.glance import Glance

TASKS = (
    Task("NQ", "retrieval", "ndcg_at_10", domain="in"),
    Task("FiQA", "retrieval", "ndcg_at_10", domain="out"),
    Task("STS12", "sts", "cosine_spearman", domain="out"),
)
VALUES = {
    "base": {"NQ": 0.5, "FiQA": 0.3, "STS12": 0.6},
    "seed=1": {"NQ": 0.6, "FiQA": 0.4, "STS12": 0.7},
    "seed=2": {"NQ": 0.64, "FiQA": 0.4, "STS12": 0.7},
    "base@64": {"NQ": 0.1, "FiQA": 0.1, "STS12": 0.1},
}


@dataclass
class Scored(Bench):
    """A workspace with the results of evaluations."""

    results: dict[str, Path] = field(default_factory=dict)

    def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
        return self.results[reference.text], Artifact(kind="scores")


@pytest.fixture
def workspace(tmp_path: Path) -> Scored:
    (tmp_path / "scores").mkdir()
    fingerprints = {name: f"hash-{name.partition('@')[0]}" for name in VALUES}
    sizes = {"base@64": 64, "base": 384}
    write_scores(tmp_path / "scores", Scores(fingerprints, TASKS, VALUES, sizes=sizes))
    made = Scored(tmp_path, results={"$scores": tmp_path / "scores"})
    made.many = {
        "$base": [Model("base", tmp_path, "hash-base")],
        "$merged": [Model(name, tmp_path, f"hash-{name}") for name in ("seed=1", "seed=2")],
        "$stray": [Model("stray", tmp_path, "hash-stray")],
    }
    return made


COLUMNS = {
    "Mean (Task)": "all",
    "Mean (Type)": "kinds",
    "OOD": "ood",
    "Retr.": "retrieval",
    "NQ": "NQ",
}


def table(rows: dict[str, PrintedRow], **options: Any) -> PrintedTable:
    given = {"columns": COLUMNS, "title": "A paper, table 1", **options}
    return PrintedTable(scores=(StepRef("$scores"),), rows=rows, **given)


def lines(step: PrintedTable, workspace: Scored) -> list[str]:
    artifact = step.run(workspace)
    return (workspace.folder / artifact.details["table"]).read_text("utf-8").splitlines()


def test_each_cell_has_this_runs_score_and_the_print(workspace: Scored) -> None:
    rows = {
        "Base": PrintedRow(model=ModelRef("$base"), printed=(46.7, None, 45.0, 40.0, 50.1)),
        "Merged": PrintedRow(model=ModelRef("$merged"), printed=(57.0, 60.5, 55.0, 50.0, 61.0)),
        "Another system": PrintedRow(printed=(1.0, 2.0, 3.0, 4.0, None)),
        "Ours alone": PrintedRow(model=ModelRef("$base")),
    }
    found = lines(table(rows, note="Ours have half the rows."), workspace)
    assert found[0] == "# A paper, table 1"
    assert found[-1] == "Ours have half the rows."
    cells = {
        row[1]: row[2:-1] for line in found if (row := [c.strip() for c in line.split("|")])[1:]
    }
    assert cells[""] == list(COLUMNS)
    assert cells["Base"] == [
        *("46.67 [46.70]", "50.00", "45.00 [45.00]", "40.00 [40.00]", "50.00 [50.10]")
    ]
    # Two seeds: 60 and 64 of NQ are 62 with a deviation of 2.83.
    assert cells["Merged"][4] == "62.00 ± 2.83 [61.00]"
    assert cells["Merged"][1] == "60.50 ± 0.71 [60.50]"
    assert cells["Another system"] == ["– [1.00]", "– [2.00]", "– [3.00]", "– [4.00]", "–"]
    assert cells["Ours alone"][4] == "50.00"
    kept = json.loads((workspace.folder / "printed_table.json").read_text())
    assert kept["rows"]["Merged"][4]["values"] == pytest.approx([60, 64])
    assert kept["rows"]["Base"][0]["printed"] == 46.7


def test_a_model_that_two_evaluations_scored_counts_once(workspace: Scored) -> None:
    workspace.results["$again"] = workspace.results["$scores"]
    rows = {"Base": PrintedRow(model=ModelRef("$base"))}
    step = replace(table(rows), scores=(StepRef("$scores"), StepRef("$again")))
    assert lines(step, workspace)[-1].endswith("| 50.00 |")


def test_a_column_may_be_of_another_evaluation_that_has_such_tasks_too(
    workspace: Scored, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    task = Task("CosQA", "retrieval", "ndcg_at_10", domain="out")
    write_scores(
        tmp_path / "code", Scores({"base": "hash-base"}, (task,), {"base": {"CosQA": 0.25}})
    )
    workspace.results["$code"] = tmp_path / "code"
    columns = {
        "Mean (Task)": "all",
        "Code": PrintedColumn(tasks="all", scores=StepRef("$code")),
        "OOD": "ood",
    }
    rows = {"Base": PrintedRow(model=ModelRef("$base"), printed=(46.7, 25.5, None))}
    step = replace(
        table(rows, columns=columns, digits=1), scores=(StepRef("$scores"), StepRef("$code"))
    )
    assert lines(step, workspace)[-1] == "| Base | 46.7 [46.7] | 25.0 [25.5] | 45.0 |"
    alone = replace(step, scores=(StepRef("$scores"),))
    found = [str(one) for one in alone.check(Glance())]  # type: ignore[arg-type]
    assert [text for text in found if "column 'Code' is of $code" in text]


def test_a_row_may_be_of_embeddings_cut_to_a_size(workspace: Scored) -> None:
    rows = {
        "64": PrintedRow(model=ModelRef("$base"), size=64),
        "384": PrintedRow(model=ModelRef("$base"), size=384),
    }
    found = lines(table(rows, columns={"NQ": "NQ"}, digits=0), workspace)
    assert found[-2:] == ["| 64 | 10 |", "| 384 | 50 |"]


def test_a_model_or_task_that_was_not_scored_is_named(workspace: Scored) -> None:
    stray = table({"Stray": PrintedRow(model=ModelRef("$stray"))})
    with pytest.raises(RecipeError, match=r"scored \$stray of row 'Stray' on 'all'.*base.*NQ"):
        stray.run(workspace)
    other = table({"Base": PrintedRow(model=ModelRef("$base"))}, columns={"Other": "MSMARCO"})
    with pytest.raises(RecipeError, match=r"on 'MSMARCO' \(column 'Other'\)"):
        other.run(workspace)


def test_rows_without_sense_are_refused_before_the_run() -> None:
    rows = {"Short": PrintedRow(printed=(1.0,)), "Empty": PrintedRow()}
    found = [str(one) for one in table(rows).check(Glance())]  # type: ignore[arg-type]
    assert [text for text in found if "1 printed numbers, and there are 5 columns" in text]
    assert [text for text in found if "'Empty' has neither" in text]
    bare = PrintedTable(scores=(), rows={}, columns={}, title="A paper")
    assert len(list(bare.check(Glance()))) == 3  # type: ignore[arg-type]

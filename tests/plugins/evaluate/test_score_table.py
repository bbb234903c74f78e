"""The table of scores, which scores.md, pages and cards draw: its rows, and the best number of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from emberge_evaluate import SINGLE_RUNS, Comparison, ScoredTask, Scores, build_table
from emberge_evaluate.markdown_scores import draw_scores

SETS = (ScoredTask("a", "sts", "m", domain="in"), ScoredTask("b", "sts", "m", domain="in"))
FAR = ScoredTask("c", "retrieval", "m", domain="out")
MEANS = ("in", "out", "task", "type", "kind:sts", "kind:retrieval")


def scores_of(tasks: Sequence[ScoredTask], other: float = 0.6) -> Scores:
    """Scores of two models: 0.5 of the first on every task and mean, `other` of the second."""
    values = {"base": 0.5, "other": other}
    return Scores(
        fingerprints=dict.fromkeys(values, ""),
        tasks=tuple(tasks),
        values={m: dict.fromkeys((t.name for t in tasks), v) for m, v in values.items()},
        means={m: dict.fromkeys(MEANS, v) for m, v in values.items()},
    )


@pytest.mark.parametrize(
    ("tasks", "wanted"),
    [
        (SETS[:1], ("a",)),
        ((FAR, SETS[0]), ("a", "c", "mean over kinds of task", "mean over tasks")),
        (SETS, ("in-domain mean", "a", "b")),
        (
            (FAR, *SETS),
            (
                *("in-domain mean", "a", "b", "c"),
                *("mean over kinds of task", "mean of sts (2)", "mean over tasks"),
            ),
        ),
    ],
)
def test_rows_begin_in_domain_and_no_mean_repeats_a_task_or_another_mean(
    tasks: Sequence[ScoredTask], wanted: Sequence[str]
) -> None:
    scores = scores_of(tasks)
    assert [row.title for row in build_table(scores).rows] == [*wanted]
    differences, values = draw_scores(scores).split("\n\n")[1:4:2]
    for table in (differences, values):
        firsts = [line.split(" |")[0].strip("| *") for line in table.splitlines()[2:]]
        assert [first.partition(" (m")[0] for first in firsts] == [*wanted]
    assert differences.startswith("| task | other |")


@pytest.mark.parametrize(
    ("metric", "other", "best"),
    [("m", 0.6, "other"), ("loss", 0.6, "base"), ("m", 0.5, None), ("loss", 0.5, None)],
)
def test_the_best_number_is_marked_unless_all_are_equal(
    metric: str, other: float, best: str | None
) -> None:
    (row,) = build_table(scores_of([ScoredTask("a", "sts", metric)], other)).rows
    assert [name for name, cell in row.cells.items() if cell.is_best] == ([best] if best else [])
    text = draw_scores(scores_of([ScoredTask("a", "sts", metric)], other))
    assert text.count("**") == (2 if best else 0)
    assert "-0.0" not in draw_scores(scores_of(SETS, 0.49996))


@pytest.mark.parametrize("has_seeds", [False, True])
def test_intervals_of_single_runs_are_said_to_leave_out_seeds(has_seeds: bool) -> None:
    difference = Comparison("other", "base", "a", 0.1, (0.0, 0.2))
    scores = replace(scores_of(SETS), comparisons=(difference,))
    arms = {name: {"seed=1": f"{name}.seed=1"} for name in scores.models}
    text = draw_scores(
        replace(scores, pooled=replace(scores, members=arms)) if has_seeds else scores
    )
    assert (SINGLE_RUNS in text) is not has_seeds
    assert text.index("+10.0 [0.0") < text.index("bold; the differences say") < text.index("**")


def test_means_of_many_models_have_intervals_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = replace(scores_of(SETS), intervals={"base": {"in": (0.4, 0.7)}})
    assert "50.0 [40.0, 70.0]" in draw_scores(scores)
    monkeypatch.setattr("emberge_evaluate.markdown_scores._FEW_MODELS", 1)
    assert "[40.0, 70.0]" not in draw_scores(scores)
    assert "at most 1 models; scores.json has those of all." in draw_scores(scores)

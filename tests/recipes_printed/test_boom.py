"""BOOM (arXiv:2602.05787): its recipes have what the paper prints, typed here from the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mteb
import pytest
from emberge_mteb.hub_tasks import hub_tasks

from tests.support.printed import printed_rows, sets_of, steps_of

SMALL, LARGE = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-4B"
RECIPES = {
    "boom/paper": {SMALL},
    "boom/paper_4b": {LARGE},
    "boom/paper_clusters": {LARGE},
    "boom/paper_incremental": {SMALL, LARGE},
}

# Section 4.3 (page 5): the same for both models, then by model.
RATE, EPOCHS, HARD_NEGATIVES, LENGTH = 5e-5, 1, 7, 512
BATCH = {SMALL: 256, LARGE: 128}
LORA = {SMALL: None, LARGE: (32, 32)}
# Section 4.1 (page 4): 31 datasets, of which the three similarity sets are one split; section 5 (page 5):
# the order of tasks in turn, and what comes last.
ENGLISH = {"retrieval": 10, "reranking": 1, "classification": 8, "clustering": 11, "sts": 1}
LEFT_OUT = {"quora", "scidocsrr", "arguana"}
LANGUAGES = {"dureader", "miracl", "mr_tydi", "t2ranking"}
CODE, CODE_ROWS = {"javascript", "java", "python", "php", "ruby"}, 10_000
ORDER = ("classification", "clustering", "sts", "retrieval")
LAST = ("msmarco_document", "msmarco_passage")
# Section 5.3 (pages 6 and 7) and section 6.2 (page 8).
CLUSTERS = {0.15: 3, 0.2: 2}
PAIRS = 3
CORE = 0.4

# Section 4.2 (pages 4 and 5), and the counts of table 2.
KINDS = {
    "Classification": 8,
    "Clustering": 8,
    "PairClassification": 3,
    "Reranking": 2,
    "Retrieval": 10,
    "STS": 9,
    "Summarization": 1,
}
BENCHMARKS = {
    "english": ("MTEB(eng, v2)", KINDS),
    "code": ("MTEB(Code, v1)", {"Retrieval": 12}),
    "rteb": ("RTEB(beta)", {"Retrieval": 16}),
}
SEVEN = [
    *("classification", "clustering", "pair_classification", "reranking", "retrieval", "sts"),
    "summarization",
]

# The tables as they stand in the paper: a line a kind of task, a column a model.
TABLE_1 = """
80.53 81.44 80.52 81.43 80.55 80.53 79.70 81.06 61.23
46.47 52.53 46.16 52.35 46.38 46.17 45.03 50.88 37.57
81.95 76.46 82.06 76.54 81.95 81.95 81.26 79.30 37.56
48.60 47.90 48.63 47.84 48.58 48.58 48.26 47.99 35.14
57.18 46.73 57.23 46.75 57.17 57.17 57.24 53.14 4.80
81.23 76.68 81.26 76.74 81.22 81.22 80.86 74.43 37.39
32.35 38.46 32.09 38.09 32.30 32.30 31.84 37.67 7.70
65.71 63.24 65.67 63.21 65.69 65.65 65.13 64.11 33.31
"""
TABLE_2 = """
86.01 51.60 76.97 85.95 61.16 74.99 87.28 70.70 79.87 87.09 69.27 80.52
54.68 26.68 45.19 54.18 40.53 44.13 59.05 38.68 48.53 58.88 39.02 46.16
81.20 55.42 80.57 79.96 44.08 79.80 82.69 60.40 82.27 82.51 53.82 82.06
45.81 35.86 45.16 45.87 36.83 46.19 49.46 40.86 48.09 49.22 38.78 48.63
50.60 20.80 50.86 46.23 23.42 53.32 55.03 31.55 57.10 51.51 32.72 57.23
78.34 49.26 77.29 77.46 45.24 78.47 81.10 60.62 81.28 81.11 52.60 81.26
31.70 25.22 31.86 30.85 24.58 31.25 35.29 28.30 32.73 37.18 23.61 32.09
65.94 37.58 62.08 64.46 41.11 62.33 69.10 49.45 65.99 68.19 47.06 65.67
61.19 37.83 58.27 60.07 39.40 58.31 64.27 47.30 61.41 63.93 44.26 61.13
"""
TABLE_3 = {
    "Task(S)": 63.24,
    "Task (N)": 65.67,
    "T0.15 (S)": 66.58,
    "T0.15 (N)": 66.54,
    "T0.2 (S)": 67.88,
    "T0.2 (N)": 66.71,
    "T1.0": 69.10,
}
# A line a model.
ICL = "88.78 57.80 85.39 48.02 55.10 82.21 32.20 69.46 - - 56.51 59.67"
TABLE_4 = {
    "boom/paper": """
86.01 54.68 81.20 45.81 50.60 78.34 31.70 65.94 73.09 56.80 46.61 56.12
85.34 55.07 80.97 46.84 53.07 79.19 31.11 66.69 73.27 58.29 52.52 61.10
85.88 55.35 82.08 47.37 53.16 79.52 31.31 67.06 73.63 58.67 52.62 61.10
86.13 55.60 81.99 47.16 53.31 80.16 32.93 67.36 73.98 58.89 53.20 61.12
""",
    "boom/paper_4b": """
87.28 59.05 82.69 49.46 55.03 81.10 35.29 69.10 75.78 60.57 60.52 65.19
86.76 58.58 83.13 49.15 54.77 81.48 34.26 68.92 75.48 60.53 61.34 66.54
87.38 58.77 83.46 49.25 55.04 81.90 36.47 69.32 75.87 60.95 61.27 66.67
87.34 59.00 83.71 49.52 55.67 81.95 36.72 69.56 75.97 61.37 61.56 66.74
""",
}
TABLE_5 = """
86.01 86.15 86.15 87.28 87.65 87.28
54.68 55.05 55.33 59.05 59.23 59.02
81.2 78.59 82.06 82.69 82.31 83.85
45.81 45.55 46.95 49.46 49.09 49.73
50.60 51.24 53.21 55.03 55.99 55.72
78.34 76.37 79.69 81.10 80.90 82.17
31.7 34.29 33.99 35.29 35.70 36.44
65.94 65.62 67.20 69.10 69.36 69.63
61.19 61.03 62.48 64.27 64.41 64.89
46.61 52.54 54.93 60.52 63.03 63.15
56.12 62.29 64.46 65.19 70.0 69.45
"""
# The bags of a line by their per cent, the training cost, and three means.
TABLE_6 = """
100 1.0 65.94 73.09 57.28
50,50 1.0 66.69 73.27 58.59
60,60 1.2 66.37 73.15 57.93
60,80 1.4 66.89 73.75 58.36
50,50,50 1.5 66.35 73.30 57.59
60,60,60 1.8 67.06 73.63 58.67
40,60,80 1.8 67.00 73.64 58.76
80,100 1.8 67.20 73.95 58.89
20,40,60,80 2.0 66.99 73.55 58.83
60,80,100 2.4 67.06 74.06 58.90
40,60,80,100 2.8 67.35 73.95 59.18
20,40,60,80,100 3.0 67.36 73.98 59.14
"""


def numbers(text: str) -> list[tuple[float | None, ...]]:
    """Return the numbers of each line, None for a dash."""
    lines = text.strip().splitlines()
    return [tuple(None if one == "-" else float(one) for one in line.split()) for line in lines]


def columns(text: str) -> list[tuple[float | None, ...]]:
    """Return the numbers of each column."""
    return list(zip(*numbers(text), strict=True))


def trainings(recipe: str) -> Iterator[tuple[str, Any]]:
    """Yield each training of a recipe, and of its studies, with its id."""
    for name, step in steps_of(recipe).items():
        if hasattr(step, "loss") and hasattr(step, "hard_negatives"):
            yield name, step


def bag(recipe: str, name: str) -> tuple[int, str | None, int]:
    """Return the per cent, part and draw of the data that a training has."""
    sampler = steps_of(recipe)[name].sampler[0]
    if type(sampler).__name__ != "Bagging":
        return 100, None, 0
    return round(100 * sampler.ratio.default), sampler.part, sampler.draw


def members(recipe: str, name: str) -> list[str]:
    """Return the steps that a merge is of, or the step itself for a training."""
    step = steps_of(recipe)[name]
    return [entry.model.step for entry in step.models] if hasattr(step, "strategy") else [name]


def step_of_row(table: Any, heading: str) -> str:
    """Return the step whose model a row of a table is about."""
    return str(table.rows[heading].model.step)


# ── trainings ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_training_has_the_printed_settings(recipe: str) -> None:
    found = dict(trainings(recipe))
    assert {step.model.text for step in found.values()} == RECIPES[recipe]
    for name, step in found.items():
        model = step.model.text
        assert (step.learning_rate, step.epochs) == (RATE, EPOCHS), name
        assert (step.hard_negatives, step.max_length.default) == (HARD_NEGATIVES, LENGTH), name
        assert step.sampler[-1].batch_size.default == BATCH[model], name
        lora = step.backbone.lora
        assert (lora and (lora.rank, lora.alpha)) == LORA[model], name
        assert [type(loss).__name__ for loss in step.loss.default] == ["InfoNCE"], name


def test_the_data_are_those_of_section_4() -> None:
    english = sets_of("boom/paper", "corpora/english")
    assert Counter(one.task for one in english.values()) == ENGLISH
    assert sum(ENGLISH.values()) == 31
    assert not LEFT_OUT & set(english)
    in_batch = {one.task for one in english.values() if one.negatives == "in_batch"}
    hard_only = {one.task for one in english.values() if one.negatives == "hard_only"}
    assert (in_batch, hard_only) == (
        {"retrieval", "reranking"},
        {"classification", "clustering", "sts"},
    )
    general = sets_of("boom/paper", "corpora/general")
    assert set(general) == LANGUAGES | {f"cornstack_{language}" for language in CODE}
    assert {one.limit for name, one in general.items() if name not in LANGUAGES} == {CODE_ROWS}


@pytest.mark.parametrize("recipe", ["boom/paper", "boom/paper_4b"])
def test_tasks_and_datasets_come_in_the_printed_order(recipe: str) -> None:
    found = steps_of(recipe)
    (in_tasks,) = found["tasks_in_turn"].sampler
    (in_datasets,) = found["datasets_in_turn"].sampler
    assert in_tasks.order == in_datasets.order == ORDER
    assert in_datasets.pin_last == LAST
    assert type(found["two_stage"].sampler[0]).__name__ == "TwoStage"
    datasets = [step for name, step in found.items() if name.startswith("of_dataset.")]
    kept = [name for step in datasets for name in step.sampler[0].datasets]
    assert sorted(kept) == sorted(sets_of(recipe, "corpora/english"))
    tasks = [found[name].sampler[0].tasks for name in members(recipe, "tasks_merged")]
    assert tasks == [("sts",), ("clustering",), ("classification",), ("retrieval", "reranking")]
    assert found["datasets_merged"].weights == found["tasks_merged"].weights == "size"


@pytest.mark.parametrize(
    ("recipe", "benchmark"),
    [
        ("boom/paper_clusters", "english"),
        *((name, one) for name in RECIPES if name != "boom/paper_clusters" for one in BENCHMARKS),
    ],
)
def test_models_are_scored_on_the_printed_tasks(recipe: str, benchmark: str) -> None:
    found = [
        one
        for name, one in steps_of(recipe).items()
        if name.partition(".")[0].removeprefix("large_") == benchmark
    ]
    assert found
    name, kinds = BENCHMARKS[benchmark]
    for step in found:
        (evaluator,) = step.evaluators
        assert evaluator.benchmark == name
        tasks = hub_tasks((), evaluator.benchmark, (), evaluator.only)
        assert [task.metadata.name for task in tasks] == list(evaluator.only)
        assert Counter(task.metadata.type for task in tasks) == kinds
        assert all(task.metadata.is_public for task in tasks)
        subsets = {t.metadata.name: t.hf_subsets for t in mteb.get_benchmark(name).tasks}
        assert all(task.hf_subsets == subsets[task.metadata.name] for task in tasks)


# ── tables ──────────────────────────────────────────────────────────────────────────────────────


def check_columns(table: Any, expected: Sequence[str]) -> None:
    """Check the tasks of a table's columns."""
    tasks = [getattr(column, "tasks", column) for column in table.columns.values()]
    assert tasks == list(expected)


def check_merge(step: Any, strategy: str, weights: str) -> None:
    """Check a merge's last link and weights."""
    assert (type(step.strategy[-1]).__name__, step.weights) == (strategy, weights)


def test_table_1_has_nine_merges_of_four_tasks() -> None:
    found = steps_of("boom/paper_4b")
    table = found["table_1"]
    check_columns(table, [*SEVEN, "all"])
    assert list(printed_rows(table).values()) == columns(TABLE_1)
    ways = {
        "Se(N)": ("SequentialSlerp", "size"),
        "MS(S)": ("MultiSlerp", "equal"),
        "MS(N)": ("MultiSlerp", "size"),
        "Kar": ("Karcher", "equal"),
        "TA(N)": ("TaskArithmetic", "size"),
        "T(S)": ("TaskArithmetic", "equal"),
        "TS(N)": ("SignConsensus", "size"),
        "SCE": ("TaskArithmetic", "size"),
        "Stock": ("ModelStock", "equal"),
    }
    assert list(table.rows) == list(ways)
    for heading, way in ways.items():
        name = step_of_row(table, heading)
        check_merge(found[name], *way)
        assert members("boom/paper_4b", name) == members("boom/paper_4b", "tasks_merged")


@pytest.mark.parametrize(
    ("recipe", "half"), [("boom/paper", slice(0, 6)), ("boom/paper_4b", slice(6, 12))]
)
def test_table_2_has_six_strategies(recipe: str, half: slice) -> None:
    table = steps_of(recipe)["table_2"]
    check_columns(table, [*SEVEN, "all", "kinds"])
    assert list(printed_rows(table).values()) == columns(TABLE_2)[half]
    assert [step_of_row(table, heading) for heading in table.rows] == [
        *("bls", "datasets_in_turn", "tasks_in_turn", "two_stage", "datasets_merged"),
        "tasks_merged",
    ]


def test_table_3_has_the_printed_clusters_and_figure_3_three_pairs() -> None:
    found = steps_of("boom/paper_clusters")
    table = found["table_3"]
    check_columns(table, ["all"])
    assert {name: row[0] for name, row in printed_rows(table).items()} == TABLE_3
    assert found["study"].rows is None
    for threshold, count in CLUSTERS.items():
        for how, weights in (("S", "equal"), ("N", "size")):
            name = step_of_row(table, f"T{threshold:g} ({how})")
            check_merge(found[name], "MultiSlerp", weights)
            cuts = [found[one].sampler[0] for one in members("boom/paper_clusters", name)]
            assert {(cut.threshold, cut.count, cut.clusters) for cut in cuts} == {
                (threshold, count, None)
            }
            assert sorted(cut.number for cut in cuts) == list(range(1, count + 1))
    assert bag("boom/paper_clusters", step_of_row(table, "T1.0")) == (100, None, 0)
    for step, member in (("jointly", "both"), ("first", "first"), ("second", "second")):
        pairs = [one.sampler[0] for name, one in found.items() if name.startswith(f"{step}.")]
        assert [(pair.rank, pair.member) for pair in pairs] == [
            (rank, member) for rank in range(1, PAIRS + 1)
        ]


@pytest.mark.parametrize("recipe", TABLE_4)
def test_table_4_has_three_sets_of_bags(recipe: str) -> None:
    table = steps_of(recipe)["table_4"]
    check_columns(table, [*SEVEN, "all", "ind", "ood", "all", "all"])
    assert list(printed_rows(table).values()) == [*numbers(ICL), *numbers(TABLE_4[recipe])]
    elsewhere = [column.scores.step for column in list(table.columns.values())[-2:]]
    assert elsewhere == ["rteb", "code"]
    bags = [
        sorted(bag(recipe, name)[0] for name in members(recipe, step_of_row(table, heading)))
        for heading in list(table.rows)[1:]
    ]
    assert bags == [[100], [50, 50], [60, 60, 60], [20, 40, 60, 80, 100]]
    half = members(recipe, "half_and_rest")
    assert [bag(recipe, name)[1] for name in half] == ["first", "rest"]


@pytest.mark.parametrize(
    ("prefix", "half"), [("", slice(0, 3)), ("large_", slice(3, 6))], ids=[SMALL, LARGE]
)
def test_table_5_has_an_update_of_each_model(prefix: str, half: slice) -> None:
    recipe = "boom/paper_incremental"
    found = steps_of(recipe)
    bls, update, gen, boom = (f"{prefix}{name}" for name in ("bls", "update", "gen", "boom"))
    table = found[f"{prefix}table_5"]
    check_columns(table, [*SEVEN, "all", "kinds", "all", "all"])
    assert list(printed_rows(table).values()) == columns(TABLE_5)[half]
    assert [step_of_row(table, heading) for heading in table.rows] == [bls, gen, boom, update]
    assert {found[name].model.text for name in (bls, update, gen)} == {LARGE if prefix else SMALL}
    core = found[update].sampler[0]
    assert (core.ratio, core.of) == (CORE, "dataset")
    assert set(core.new) == set(sets_of(recipe, "corpora/general"))
    check_merge(found[boom], "MultiSlerp", "size")
    assert members(recipe, boom) == [bls, update]
    both = ["corpora/english", "corpora/general"]
    for name, paths in ((bls, both[:1]), (update, both), (gen, both)):
        assert [entry.path.text for entry in found[name].data] == paths


def test_table_6_has_eleven_sets_of_bags_at_their_cost() -> None:
    table = steps_of("boom/paper")["table_6"]
    check_columns(table, ["all", "ind", "ood"])
    lines = [line.split() for line in TABLE_6.strip().splitlines()]
    assert list(printed_rows(table).values()) == [
        tuple(map(float, means)) for _, _, *means in lines
    ]
    for heading, (bags, cost, *_) in zip(table.rows, lines, strict=True):
        assert heading.endswith(f"(TC {cost})")
        name = step_of_row(table, heading)
        found = [bag("boom/paper", one) for one in members("boom/paper", name)]
        assert ",".join(str(one[0]) for one in sorted(found)) == bags
        assert len(set(found)) == len(found), "one bag twice"
        assert sum(one[0] for one in found) / 100 == pytest.approx(float(cost))
        if name != "bls":
            check_merge(steps_of("boom/paper")[name], "MultiSlerp", "size")


def test_figure_1_has_a_line_a_share() -> None:
    figure = steps_of("boom/paper")["figure_1"]
    shares: Mapping[str, int] = {
        heading: bag("boom/paper", step_of_row(figure, heading))[0] for heading in figure.rows
    }
    assert shares == {f"{share} %": share for share in (20, 40, 60, 80, 100)}

"""CoDiEmb (arXiv:2508.11442): its recipe has what the paper prints, typed here from the paper.

The paper prints neither batches, rates, epochs nor lengths: `tests/merge_recipes/test_codiemb_paper.py` holds
the recipe to those of its scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from emberge.recipes import shipped_recipes
from emberge_mteb.hub_tasks import hub_tasks

from tests.support.printed import group, printed_rows, sets_of, steps_of

PAPER = "codiemb/paper"
BGE, E5 = "BAAI/bge-large-zh-v1.5", "intfloat/multilingual-e5-large"
DECODER = "Qwen/Qwen3-0.6B"  # in the place of MiniCPM-Embedding
MODELS = (BGE, E5, DECODER)

# Section 3.1: pooling by backbone, and whether the instruction's tokens are pooled.
POOLING = {BGE: ("cls", True), E5: ("mean", False), DECODER: ("mean", False)}
# Table 5 (appendix A): rows of training, None where a task is scored without any, and rows of the test.
RETRIEVAL = {
    "CmedqaRetrieval": (99_904, 4_000),
    "CovidRetrieval": (None, 949),
    "DuRetrieval": (83_456, 2_000),
    "MMarcoRetrieval": (None, 6_980),
    "T2Retrieval": (698_752, 22_800),
    "EcomRetrieval": (81_920, 1_000),
    "MedicalRetrieval": (None, 1_000),
    "VideoRetrieval": (82_560, 1_000),
}
SIMILARITY = {
    "AFQMC": (34_334, 3_861),
    "ATEC": (62_477, 20_000),
    "BQ": (100_000, 10_000),
    "LCQMC": (238_766, 12_500),
    "PAWSX": (49_129, 2_000),
    "QBQTC": (180_000, 5_000),
    "STSB": (5_231, 1_360),
}
# What is not on the hub: QBQTC's training rows.
NOT_ON_THE_HUB = {"QBQTC"}
TASK_OF = {"STS-B": "STSB", "Avg IR": "retrieval", "Avg STS": "sts", "Avg": "kinds"}
ARMS = {"InfoNCE": "infonce", "CoSENT": "cosent", "Mixed": "mixed", "CoDiEmb": "joint"}
SPECIALISTS = {"CoDiEmb": "joint", "IR only": "retrieval", "STS only": "similarity"}

TABLE_1_HEAD = ["AFQMC", "ATEC", "BQ", "LCQMC", "PAWSX", "QBQTC", "STS-B", "Avg IR", "Avg STS"]
TABLE_1 = {
    DECODER: {
        "InfoNCE": (61.51, 58.03, 67.78, 71.89, 40.93, 41.82, 81.73, 74.23, 60.53),
        "CoSENT": (69.28, 59.54, 73.57, 79.97, 63.95, 58.35, 85.69, 71.30, 70.05),
        "Mixed": (70.77, 61.37, 72.01, 78.40, 65.48, 59.29, 84.93, 73.05, 70.32),
        "CoDiEmb": (69.70, 60.56, 74.23, 80.38, 67.12, 60.98, 85.11, 75.73, 71.15),
    },
    E5: {
        "InfoNCE": (52.07, 53.12, 69.72, 72.83, 26.99, 40.46, 79.02, 70.90, 56.32),
        "CoSENT": (53.18, 53.09, 72.19, 80.29, 57.53, 53.52, 82.50, 65.69, 64.61),
        "Mixed": (58.36, 54.91, 72.83, 79.99, 63.44, 56.87, 81.84, 68.61, 66.89),
        "CoDiEmb": (60.81, 56.06, 73.08, 80.17, 65.41, 57.85, 82.20, 70.39, 67.94),
    },
    BGE: {
        "InfoNCE": (54.47, 54.34, 68.64, 74.16, 34.31, 41.12, 79.61, 71.73, 58.09),
        "CoSENT": (56.73, 54.52, 72.55, 80.54, 55.34, 52.56, 80.67, 66.55, 64.70),
        "Mixed": (62.59, 56.59, 73.04, 80.16, 59.51, 56.82, 81.13, 68.67, 67.12),
        "CoDiEmb": (65.54, 58.03, 72.42, 80.21, 60.43, 57.07, 80.77, 71.14, 67.78),
    },
}
TABLE_2_HEAD = [
    "Cmedqa",
    "Covid",
    "Du",
    "Ecom",
    "MMarco",
    "Medical",
    "T2",
    "Video",
    "Avg IR",
    "Avg STS",
]
TABLE_2 = {
    DECODER: {
        "InfoNCE": (41.99, 90.73, 88.78, 65.42, 83.76, 61.26, 86.91, 74.98, 74.23, 60.53),
        "CoSENT": (42.28, 81.81, 86.70, 65.66, 78.89, 59.57, 84.52, 70.97, 71.30, 70.05),
        "Mixed": (41.82, 90.01, 87.62, 64.10, 83.21, 59.64, 86.22, 71.75, 73.05, 70.32),
        "CoDiEmb": (45.43, 90.61, 89.51, 69.24, 84.26, 62.86, 87.36, 76.55, 75.73, 71.15),
    },
    E5: {
        "InfoNCE": (41.85, 74.97, 85.90, 65.76, 77.40, 59.82, 84.47, 77.00, 70.90, 56.32),
        "CoSENT": (33.49, 70.31, 83.82, 62.50, 73.05, 51.66, 82.54, 68.17, 65.69, 64.61),
        "Mixed": (38.53, 75.79, 83.02, 63.64, 75.75, 55.92, 82.12, 74.07, 68.61, 66.89),
        "CoDiEmb": (40.26, 77.13, 85.41, 65.16, 77.71, 57.32, 84.25, 75.87, 70.39, 67.94),
    },
    BGE: {
        "InfoNCE": (45.14, 75.86, 88.19, 67.33, 76.01, 59.51, 84.92, 76.86, 71.73, 58.09),
        "CoSENT": (39.66, 68.22, 85.68, 63.79, 67.28, 55.90, 82.36, 69.49, 66.55, 64.70),
        "Mixed": (43.04, 74.90, 85.58, 64.96, 66.58, 57.39, 83.50, 73.40, 68.67, 67.12),
        "CoDiEmb": (44.59, 76.87, 88.05, 67.03, 71.99, 59.17, 84.94, 76.50, 71.14, 67.78),
    },
}
TABLE_3 = {
    DECODER: {
        "CoDiEmb": (75.73, 71.15, 73.44),
        "IR only": (76.10, 49.67, 62.89),
        "STS only": (62.28, 68.83, 65.56),
    },
    E5: {
        "CoDiEmb": (70.39, 67.94, 69.17),
        "IR only": (71.34, 48.22, 59.78),
        "STS only": (48.02, 66.37, 57.20),
    },
    BGE: {
        "CoDiEmb": (71.14, 67.78, 69.46),
        "IR only": (72.12, 51.72, 61.92),
        "STS only": (45.64, 66.26, 55.95),
    },
}
TABLE_4_HEAD = ["ATEC", "BQ", "LCQMC", "PAWSX", "STSB", "AFQMC", "QBQTC", "Avg"]
TABLE_4 = {
    "CoDiEmb": {
        "rank": (14.97, 12.85, 10.63, 38.44, 19.80, 14.62, 9.47, 17.25),
        "token_similarity": (67.67, 72.92, 70.61, 61.68, 65.77, 67.82, 70.22, 68.10),
        "svd_entropy": (1.81, 1.50, 1.59, 2.49, 2.01, 1.79, 1.54, 1.82),
        "condition_number": (
            7413.04,
            10847.82,
            19901.18,
            265.59,
            507.70,
            13129.53,
            15584.98,
            9664.26,
        ),
    },
    "Mixed": {
        "rank": (14.45, 12.58, 10.61, 38.42, 19.52, 14.33, 9.35, 17.04),
        "token_similarity": (67.83, 74.91, 71.86, 61.58, 66.54, 67.93, 70.46, 68.73),
        "svd_entropy": (1.77, 1.40, 1.54, 2.47, 1.96, 1.76, 1.53, 1.78),
        "condition_number": (
            19580.63,
            17888.89,
            20916.23,
            1007.10,
            6118.76,
            21357.64,
            18648.04,
            15073.90,
        ),
    },
    "InfoNCE": {
        "rank": (14.52, 12.58, 10.61, 38.41, 19.54, 14.36, 9.35, 17.05),
        "token_similarity": (73.22, 78.79, 70.69, 70.67, 77.78, 72.41, 72.92, 73.93),
        "svd_entropy": (1.61, 1.27, 1.62, 2.10, 1.49, 1.60, 1.45, 1.59),
        "condition_number": (
            21028.14,
            21571.02,
            22738.23,
            1245.10,
            7025.74,
            24150.67,
            20942.72,
            16957.37,
        ),
    },
    "CoSENT": {
        "rank": (14.57, 12.68, 10.62, 38.44, 19.67, 14.40, 9.38, 17.11),
        "token_similarity": (73.04, 76.30, 74.55, 69.97, 75.32, 73.36, 74.02, 73.79),
        "svd_entropy": (1.58, 1.36, 1.42, 2.07, 1.58, 1.56, 1.38, 1.56),
        "condition_number": (
            17917.04,
            16278.22,
            22119.27,
            348.73,
            3742.57,
            20770.19,
            19353.22,
            14361.32,
        ),
    },
}


def step_of(model: str, role: str) -> Any:
    """Return the step of one backbone that has a role."""
    if model == DECODER:
        return steps_of(PAPER)[f"decoder_{role}"]
    short = model.rpartition("/")[2]
    *_, found = [  # after the parts that it is split into
        step
        for name, step in steps_of(PAPER).items()
        if name.partition(".")[0] == role and short in name
    ]
    return found


def role_of(reference: Any) -> str:
    return str(reference.step).partition(".")[0].removeprefix("decoder_")


# ── sections 2 and 3.1 ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", MODELS)
def test_backbones_pool_as_printed(model: str) -> None:
    for role in (*ARMS.values(), "retrieval", "similarity"):
        train = step_of(model, role)
        assert train.model.text == model
        assert (train.backbone.pooling, train.backbone.include_prompt) == POOLING[model]
        assert "{instruction}" in train.data[0].prompt


@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_section_2(model: str) -> None:
    """Similarity: eqs. 4, 6, 8 and 9 on one device; retrieval: eq. 2 over all of them, several positives."""
    losses = step_of(model, "joint").loss.by_task
    named = {type(one).__name__: one for one in losses["sts"]}
    assert set(named) == {"Pearson", "RankKL", "PRO", "MidNCE"}
    assert not any(one.cross_rank for one in losses["sts"])
    assert named["MidNCE"].layer is not None, "at an intermediate layer"
    (infonce,) = losses["retrieval"]
    assert infonce.cross_rank
    assert infonce.positives_in_denominator == "all"
    assert step_of(model, "joint").positives > 1


@pytest.mark.parametrize("model", MODELS)
def test_fusion_is_equation_11_to_the_letter(model: str) -> None:
    """Softmax of the norms of the two specialists' changes as they are, over soups of each task (eq. 12)."""
    fused, norms = step_of(model, "fused"), step_of(model, "norms")
    groups, softmax = fused.strategy
    assert type(groups.by).__name__ == "Linear"
    assert softmax.normalise == "none"
    assert role_of(softmax.deltas) == "norms"
    specialists = {name: role_of(one) for name, one in norms.models.items()}
    assert specialists == {"retrieval": "retrieval", "similarity": "similarity"}
    assert norms.base.text == fused.base.text == model


def test_the_laptop_has_a_fusion_to_the_letter_too() -> None:
    strategies = [one.strategy[1] for one in group("codiemb/laptop", "fusion_printed")]
    assert {one.normalise for one in strategies} == {"none"}
    assert len({one.temperature for one in strategies}) == 3


# ── table 5 ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", MODELS)
def test_tasks_that_are_scored_are_table_5(model: str) -> None:
    (evaluator,) = step_of(model, "scores").evaluators
    tasks = {
        task.metadata.name: task for task in hub_tasks((), evaluator.benchmark, (), evaluator.only)
    }
    assert tasks.keys() == RETRIEVAL.keys() | SIMILARITY.keys()
    (corpus,) = evaluator.in_domain_of
    trained = {name for name, (rows, _) in (RETRIEVAL | SIMILARITY).items() if rows is not None}
    named = {
        task for one in sets_of(PAPER, "corpora/chinese").values() for task in one.ind_tasks or ()
    }
    assert corpus.path.text.endswith("corpora/chinese")
    assert named & tasks.keys() == trained - NOT_ON_THE_HUB


def test_the_corpus_tells_every_count_of_table_5_that_it_does_not_have() -> None:
    path = shipped_recipes()[PAPER].path.parent / "corpora/chinese/datasets.yaml"
    told = path.read_text("utf-8").partition("format:")[0]
    for name, (rows, _) in (RETRIEVAL | SIMILARITY).items():
        assert rows is None or f"{rows:,}" in told, name


# ── tables 1 to 4 ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("table", "head", "printed", "arms"),
    [
        ("table_1", TABLE_1_HEAD, TABLE_1, ARMS),
        ("table_2", TABLE_2_HEAD, TABLE_2, ARMS),
        ("table_3", ["Avg IR", "Avg STS", "Avg"], TABLE_3, SPECIALISTS),
    ],
)
def test_tables_of_scores_have_every_printed_cell(
    table: str,
    head: list[str],
    printed: Mapping[str, Mapping[str, tuple[float, ...]]],
    arms: Mapping[str, str],
    model: str,
) -> None:
    step = step_of(model, table)
    assert printed_rows(step) == printed[model]
    assert [*step.columns] == head
    tasks = RETRIEVAL.keys() | SIMILARITY.keys()
    for title, task in step.columns.items():
        expected = TASK_OF.get(title, title if title in tasks else f"{title}Retrieval")
        assert task == expected
    assert {row: role_of(step.rows[row].model) for row in arms} == arms


@pytest.mark.parametrize("model", MODELS)
def test_printed_means_are_those_of_their_tasks(model: str) -> None:
    """To a hundredth: two digits are printed, and a mean may be of more. So no cell is mistyped."""
    for arm in ARMS:
        *similarity, _, mean = TABLE_1[model][arm]
        assert sum(similarity) / 7 == pytest.approx(mean, abs=0.0101)
        *retrieval, mean, _ = TABLE_2[model][arm]
        assert sum(retrieval) / 8 == pytest.approx(mean, abs=0.0101)
        assert TABLE_1[model][arm][-2:] == TABLE_2[model][arm][-2:]
    for retrieval_mean, similarity_mean, both in TABLE_3[model].values():
        assert (retrieval_mean + similarity_mean) / 2 == pytest.approx(both, abs=0.0101)


def test_table_4_is_over_the_seven_test_sets_with_every_printed_cell() -> None:
    *_, step = group(PAPER, "table_4")
    assert {name: role_of(model) for name, model in step.models.items()} == ARMS
    assert all(BGE.rpartition("/")[2] in model.step for model in step.models.values())
    printed = {name: dict(one.by_measure) for name, one in step.printed.numbers.items()}
    assert printed == TABLE_4
    assert [*step.printed.numbers] == [*TABLE_4], "in the paper's order"
    sets = [
        name for entry in step.data for name in (entry.only or [str(entry.hub).rpartition("/")[2]])
    ]
    assert sets == TABLE_4_HEAD[:-1]
    assert {entry.split for entry in step.data} == {"test"}


def test_means_of_table_4_are_those_of_its_sets_but_for_one_that_the_paper_has_otherwise() -> None:
    """The printed 73.93 is 73.78 by its own cells."""
    others = [
        (name, measure)
        for name, measures in TABLE_4.items()
        for measure, (*numbers, mean) in measures.items()
        if sum(numbers) / 7 != pytest.approx(mean, abs=0.0101)
    ]
    assert others == [("InfoNCE", "token_similarity")]

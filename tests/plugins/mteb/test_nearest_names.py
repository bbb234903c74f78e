"""An unknown task or benchmark of mteb is answered with the names that may have been meant."""

from __future__ import annotations

import pytest
from emberge_mteb.evaluator import Mteb
from emberge_mteb.hub_tasks import find_unknown, suggest_benchmarks, suggest_names, suggest_tasks

from tests.support.glance import faults

KNOWN = [
    "NFCorpus",
    "NFCorpus-PL",
    "Banking77Classification",
    "RuBQReranking",
    "FiQA2018",
    "SciFact",
]


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("NFCorpos", ["NFCorpus", "NFCorpus-PL"]),
        ("nfcorpus", ["NFCorpus", "NFCorpus-PL"]),
        ("Banking77", ["Banking77Classification"]),
        ("banking77clasification", ["Banking77Classification"]),
        ("fiqa", ["FiQA2018"]),
        ("Zzz", []),
        ("a", []),
    ],
)
def test_the_nearest_names_are_offered(word: str, offered: list[str]) -> None:
    hint = suggest_names(word, KNOWN)
    places = [hint.find(f"'{name}'") for name in offered]
    assert -1 not in places
    assert places == sorted(places), "the nearest first"
    assert not [name for name in set(KNOWN) - set(offered) if f"'{name}'" in hint]
    assert bool(hint) == bool(offered)


def test_no_more_than_three_are_offered() -> None:
    assert suggest_names("Quora", [f"Quora{i}" for i in range(9)]).count("'") == 6


def test_mtebs_own_tasks_and_benchmarks_are_known() -> None:
    assert suggest_tasks("Banking77").startswith("; did you mean 'Banking77Classification'")
    assert "'STSBenchmark'" in suggest_tasks("STSBenchmrk")
    assert "'MTEB(eng, v2)'" in suggest_benchmarks("MTEB(en, v2)")
    assert set(find_unknown(["NFCorpus", "NFCorpos"])) == {"NFCorpos"}


def test_a_check_names_every_unknown_task_at_once() -> None:
    found = faults(Mteb(tasks=("NFCorpos", "SciFact", "Banking77")))
    assert len(found) == 2
    assert "'NFCorpus'" in found[0]
    assert "'Banking77Classification'" in found[1]


def test_a_name_that_a_benchmark_lacks_is_answered_with_its_own() -> None:
    (found,) = faults(Mteb(benchmark="MTEB(eng, v2)", only=("Banking77",)))
    assert "'Banking77Classification'" in found

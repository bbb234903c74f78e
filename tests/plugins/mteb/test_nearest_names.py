"""An unknown task of mteb is answered with the name that may have been meant."""

from __future__ import annotations

from emberge_mteb.evaluator import Mteb

from tests.support.glance import faults


def test_a_check_names_every_unknown_task_at_once() -> None:
    found = faults(Mteb(tasks=("NFCorpos", "SciFact", "Banking77Clasification")))
    assert len(found) == 2
    assert "'NFCorpus'" in found[0]
    assert "'Banking77Classification'" in found[1]


def test_a_name_that_a_benchmark_lacks_is_answered_with_its_own() -> None:
    (found,) = faults(Mteb(benchmark="MTEB(eng, v2)", only=("Banking77Clasification",)))
    assert "'Banking77Classification'" in found

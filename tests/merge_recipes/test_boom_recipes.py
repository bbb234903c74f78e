"""The bags, corpora, domains and costs of BOOM's recipes are as they say.

The settings of the paper are in tests/recipes_printed/test_boom.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mteb
import pytest
from emberge import DataEntry, DataRef, Step
from emberge.data import load_catalogue
from emberge.recipes import list_shipped_recipes
from emberge_mteb import list_in_domain_tasks

from tests.support.printed import steps_of

BOOM = {
    name.partition("/")[2]: shipped
    for name, shipped in list_shipped_recipes().items()
    if name.startswith("boom/")
}
CORPORA = BOOM["paper"].path.parent / "corpora"


def steps(name: str) -> Mapping[str, Any]:
    """The recipe's concrete steps by id."""
    return steps_of(f"boom/{name}")


def bags(name: str) -> dict[str, tuple[Any, ...]]:
    """(ratio, draw, part, seed) of each training's bag by step."""
    found = {}
    for step, one in steps(name).items():
        samplers = getattr(one, "sampler", ())
        bag = next((s for s in samplers if type(s).__name__ == "Bagging"), None)
        if bag is not None:
            found[step] = (bag.ratio.default, bag.draw, bag.part, one.seed)
        elif samplers:
            found[step] = (1.0, 0, None, one.seed)
    return found


def merged(name: str) -> dict[str, list[str]]:
    """The members of each merge by step."""
    return {
        step: [entry.model.step for entry in one.models]
        for step, one in steps(name).items()
        if hasattr(one, "strategy")
    }


# ── the paper's scale ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["paper", "paper_4b"])
def test_boom_must_not_be_worse_than_one_run(name: str) -> None:
    english: Any = steps(name)["english"]
    boom = "$m20_40_60_80_100"
    demanded = {(r.tasks, r.model.text, r.not_worse_than[0].text) for r in english.require}
    assert demanded == {("ood", boom, "$bls"), ("ind", boom, "$bls")}
    assert english.models[0].model.text == "$bls"


@pytest.mark.parametrize(
    ("name", "other", "shared"),
    [
        ("paper", "paper_incremental", {"bls"}),
        ("paper_4b", "paper_clusters", {"bls", "of_sts", "of_clustering", "of_retrieval"}),
    ],
)
def test_recipes_share_the_trainings_that_their_headers_say(
    name: str, other: str, shared: set[str]
) -> None:
    _require_shared(name, other, shared)


@pytest.mark.usefixtures("shared_data")
def test_the_study_of_clusters_is_that_of_conflicts() -> None:
    _require_shared(
        "clusters", "conflicts", {"study", "study.alone=squad", "study.pair=clinc150,nl2bash"}
    )


def _require_shared(name: str, other: str, shared: set[str]) -> None:
    assert "not trained again" in BOOM[other].description or "twice" in BOOM[other].description
    for step in shared:
        assert steps(name)[step] == steps(other)[step]


# ── corpora ─────────────────────────────────────────────────────────────────────────────────────


def trained_on(folder: str) -> tuple[str, ...]:
    entry = DataEntry(path=DataRef(str(CORPORA / folder)))
    return list_in_domain_tasks([entry], lambda reference: Path(reference.text))


def test_the_english_corpus_has_one_split_a_dataset() -> None:
    sets = load_catalogue(CORPORA / "english").train
    assert {one.hub for one in sets} == {"cfli/bge-full-data"}
    assert {one.split for one in sets} == {one.name for one in sets}
    assert len({one.revision for one in sets}) == 1
    assert {one.task for one in sets if one.symmetric} == {"sts", "clustering"}
    assert all(one.instruction.endswith(".") for one in sets)


def test_the_general_corpus_reads_code_by_its_columns() -> None:
    sets = load_catalogue(CORPORA / "general").train
    code = [one for one in sets if str(one.hub).startswith("nomic-ai/cornstack-")]
    assert {one.columns.positive for one in code} == {"document"}


@pytest.mark.parametrize("folder", ["english", "general"])
def test_every_in_domain_task_is_one_of_mtebs(folder: str) -> None:
    for task in trained_on(folder):
        assert mteb.get_task(task).metadata.name == task


@pytest.mark.slow
def test_in_domain_is_what_shares_its_source_and_nothing_else() -> None:
    english = [task.metadata.name for task in mteb.get_benchmark("MTEB(eng, v2)").tasks]
    outside = set(english) - set(trained_on("english"))
    assert len(outside) == 17
    assert {"ArguAna", "SCIDOCS", "MassiveIntentClassification", "SICK-R", "TRECCOVID"} < outside
    assert not {"FEVERHardNegatives", "STSBenchmark", "MTOPDomainClassification"} & outside
    rteb = {task.metadata.name for task in mteb.get_benchmark("RTEB(beta)").tasks}
    assert not rteb & set(trained_on("english"))
    assert rteb & set(trained_on("general")) == {"MIRACLRetrievalHardNegatives"}


# ── Table 6 and Figure 1 ────────────────────────────────────────────────────────────────────────

# Its sets of bags by their per cent, and what each costs.
TABLE_6 = {
    (50, 50): 1.0,
    (60, 60): 1.2,
    (60, 80): 1.4,
    (50, 50, 50): 1.5,
    (60, 60, 60): 1.8,
    (40, 60, 80): 1.8,
    (80, 100): 1.8,
    (20, 40, 60, 80): 2.0,
    (60, 80, 100): 2.4,
    (40, 60, 80, 100): 2.8,
    (20, 40, 60, 80, 100): 3.0,
}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_eleven_bag_sets_share_their_members(seed: int) -> None:
    found = {step: bag for step, bag in bags("bag_sets").items() if bag[3] == seed}
    sets = {
        tuple(sorted(round(100 * found[member][0]) for member in members)): members
        for step, members in merged("bag_sets").items()
        if step.endswith(f".seed={seed}")
    }
    assert {ratios: sum(ratios) / 100 for ratios in sets} == pytest.approx(TABLE_6)
    for ratios, members in sets.items():
        assert len({found[member] for member in members}) == len(ratios), "one bag twice"
    assert {found[member][2] for member in sets[50, 50]} == {"first", "rest"}
    used = {member for members in sets.values() for member in members}
    assert used == found.keys()
    scored = [entry.model.step for entry in steps("bag_sets")["scores"].models]
    assert scored[0] == "b100.seed=1"
    assert set(merged("bag_sets")) < set(scored)


def test_every_ratio_is_merged_of_its_own_and_every_seed_of_all_ratios() -> None:
    found, merges = bags("ratios"), merged("ratios")
    ratios = {0.2, 0.4, 0.6, 0.8, 1.0}
    for ratio in ratios:
        members = merges[f"merged.ratio={ratio}"]
        assert {found[member][0] for member in members} == {ratio}
        assert {found[member][3] for member in members} == {1, 2, 3}
    for seed in (1, 2, 3):
        members = merges[f"five.seed={seed}"]
        assert {found[member][0] for member in members} == ratios
        assert {found[member][3] for member in members} == {seed}


def test_headers_tell_what_all_trainings_cost() -> None:
    for name, seeds in (("bag_sets", {1}), ("ratios", {1, 2, 3})):
        told = re.search(r"^Cost +([\d.]+) ×", BOOM[name].description, re.MULTILINE)
        assert told is not None
        cost = sum(bag[0] for bag in bags(name).values() if bag[3] in seeds)
        assert float(told[1]) == pytest.approx(cost)
    assert isinstance(steps("ratios")["scores"], Step)

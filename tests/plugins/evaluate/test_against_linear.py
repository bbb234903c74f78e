"""Merges are held against the linear merge of the same members, and where none differs that is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emberge import Artifact, Model, ModelRef
from emberge.evaluating import Scores, read_scores
from emberge_evaluate.linear_reference import linear_merges
from emberge_evaluate.seed_groups import Scored
from emberge_report.conclusions import conclusions

from tests.support.given_scores import Given, bench, run, step

MEMBERS = {"$a": "hash-a", "$b": "hash-b"}


def merge(name: str, root: Path, strategy: Any, members: Any = None, **more: Any) -> Model:
    details = {"strategy": [strategy], "models": members or MEMBERS, **more}
    return Model(name, root, f"hash-{name}", Artifact("model", details=details))


def scores_of(root: Path, quality: dict[str, float], *merges: Model) -> tuple[Scores, str]:
    workspace = bench(root, "base")
    for one in merges:
        workspace.many[f"${one.name}"] = [one]
    names = ("base", *(one.name for one in merges))
    run(step(*names, evaluators=(Given(quality=quality),)), workspace)
    return read_scores(workspace.folder), (workspace.folder / "scores.md").read_text()


def words(scores: Scores) -> str:
    return "\n".join(conclusions(scores, {}))


def test_methods_that_score_alike_are_named_as_no_better_than_linear(tmp_path: Path) -> None:
    merges = (merge("soup", tmp_path, "linear"), merge("ties", tmp_path, {"ties": {}}))
    scores, text = scores_of(tmp_path, {}, *merges)
    assert {(one.model, one.reference) for one in scores.against_linear} == {("ties", "soup")}
    sentence = "No merge of these differs from linear (soup) by more than noise: ties."
    assert sentence in text
    assert sentence in words(scores)


def test_a_method_that_differs_is_named_with_its_interval(tmp_path: Path) -> None:
    merges = (merge("soup", tmp_path, "linear"), merge("ties", tmp_path, {"ties": {}}))
    scores, text = scores_of(tmp_path, {"ties": -0.2}, *merges)
    assert "No merge of these" not in text + words(scores)
    assert "By more than noise these differ from linear (soup): ties" in text
    assert "by more than noise: " in words(scores)


def test_only_merges_of_the_same_members_are_held_against_each_other(tmp_path: Path) -> None:
    merges = {
        "soup": merge("soup", tmp_path, "linear"),
        "other": merge("other", tmp_path, "ties", {"$a": "hash-a"}),
        "half": merge("half", tmp_path, {"keep_base": {"keep": 0.5, "by": "linear"}}, keep=0.5),
        "half_ties": merge(
            "half_ties", tmp_path, {"keep_base": {"keep": 0.5, "by": {"ties": {}}}}, keep=0.5
        ),
    }
    models = {name: (Scored(name, ModelRef(f"${name}")), model) for name, model in merges.items()}
    models["trained"] = (Scored("trained", ModelRef("$t")), Model("trained", tmp_path, "t"))
    assert linear_merges(models) == {"half_ties": "half"}


def test_without_a_linear_merge_there_is_nothing_to_hold_against(tmp_path: Path) -> None:
    scores, text = scores_of(tmp_path, {}, merge("ties", tmp_path, {"ties": {}}))
    assert not scores.against_linear
    assert "linear" not in text


def test_seeds_are_held_against_seeds(tmp_path: Path) -> None:
    workspace = bench(tmp_path, "base")
    names = []
    for seed in (1, 2):
        members = {"$a": f"a{seed}", "$b": f"b{seed}"}
        for method in ("linear", "ties"):
            name = f"{method}.seed={seed}"
            workspace.many[f"${name}"] = [merge(name, tmp_path, method, members)]
            names.append(name)
    run(step("base", *names, evaluators=(Given(),)), workspace)
    scores = read_scores(workspace.folder)
    assert len({one.model for one in scores.against_linear}) == 2
    assert scores.pooled is not None
    pairs = {(one.model, one.reference) for one in scores.pooled.against_linear}
    assert pairs == {("ties", "linear")}

"""Rows of what an ensemble of members, and the best of them for each task, would score."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from emberge import CheckpointError, Model, ModelRef, RecipeError
from emberge.encoding import TextEmbedder
from emberge.evaluating import Scores, read_scores
from emberge_encoder import TextEncoder
from emberge_evaluate.evaluate_step import Evaluate, EvaluatedModel
from emberge_evaluate.requirements import Requirement
from emberge_evaluate.room_for_merges import ENSEMBLE, ORACLE, Ensemble
from emberge_mteb import EvalEntry, Mteb

from tests.support.bench import BACKBONE, Bench, DataRef, model_at, write_catalogue
from tests.support.given_scores import QUALITY, Given
from tests.support.glance import Glance

TEXTS = ["a file", "the model and its weights", "sort"]


def evaluation(data: Path, names: Sequence[str], headroom: Sequence[str]) -> Evaluate:
    mteb = Mteb(backbone=BACKBONE, data=(EvalEntry(path=DataRef(str(data))),))
    return Evaluate(
        models=tuple(EvaluatedModel(model=ModelRef(f"${name}")) for name in names),
        headroom=tuple(ModelRef(f"${name}") for name in headroom),
        evaluators=(mteb,),
        resamples=100,
    )


def scored(place: Bench, step: Evaluate) -> Scores:
    step.run(place)
    return read_scores(place.folder)


@pytest.fixture
def place(berts: list[Path], tmp_path: Path) -> Bench:
    place = Bench(tmp_path)
    place.many = {f"${n}": [model_at(f, n)] for n, f in zip("abc", berts, strict=True)}
    return place


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_catalogue(tmp_path / "sets", ("retrieval", "sts"))


def embedded(encoder: object) -> np.ndarray:
    return TextEmbedder(encoder).embed(TEXTS)  # type: ignore[arg-type]


def test_an_ensemble_is_the_mean_of_embeddings_before_they_have_length_one(
    berts: list[Path],
) -> None:
    found = Ensemble(of=BACKBONE, members=tuple(berts[:2])).load(
        berts[0], device="cpu", dtype="float32"
    )
    plain = TextEncoder(normalize=False)
    apart = [embedded(plain.load(f, device="cpu", dtype="float32")) for f in berts[:2]]
    assert abs(np.linalg.norm(apart[0], axis=1) - 1).min() > 1e-3
    torch.testing.assert_close(
        torch.tensor(embedded(found)), torch.tensor((apart[0] + apart[1]) / 2), rtol=1e-6, atol=1e-6
    )
    with pytest.raises(CheckpointError, match="merge its members"):
        found.save(Path("nowhere"))


def test_members_that_read_other_tokens_are_refused(berts: list[Path], tmp_path: Path) -> None:
    other = shutil.copytree(berts[1], tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["unheard"] = words.pop(max(words, key=words.__getitem__))
    (other / "tokenizer.json").write_text(json.dumps(content))
    both = Ensemble(of=BACKBONE, members=(berts[0], other))
    with pytest.raises(CheckpointError, match="another tokenizer") as error:
        both.load(berts[0], device="cpu", dtype="float32")
    assert str(other) in str(error.value)


def test_both_rows_are_scored_beside_the_members(place: Bench, data: Path) -> None:
    scores = scored(place, evaluation(data, "ab", "abc"))
    assert scores.models == ("a", "b", "c", ENSEMBLE, ORACLE)
    assert scores.headroom == (ENSEMBLE, ORACLE)
    for task in ("retrieval", "sts"):
        members = [scores.values[name][task] for name in "abc"]
        assert scores.values[ORACLE][task] == max(members)
        compared = scores.difference(ORACLE, task)
        assert compared is not None
        assert compared.interval is not None
    assert set(scores.parameters) == {"a", "b", "c"}
    assert scores.best("task") == max(scores.means[name]["task"] for name in "abc")


def test_an_ensemble_of_one_model_twice_is_that_model(
    place: Bench, data: Path, berts: list[Path]
) -> None:
    place.many["$twin"] = [Model("twin", berts[0], "another")]
    scores = scored(place, evaluation(data, "ab", ("a", "twin")))
    for task in ("retrieval", "sts"):
        assert scores.values[ENSEMBLE][task] == pytest.approx(scores.values["a"][task], abs=1e-6)


def test_no_row_of_headroom_is_called_the_best_or_held_to_a_requirement(
    place: Bench, data: Path
) -> None:
    step = evaluation(data, "ab", "abc")
    step = Evaluate(
        models=step.models,
        headroom=step.headroom,
        evaluators=step.evaluators,
        base=ModelRef("$a"),
        require=(Requirement(forgetting=0.0),),
        resamples=100,
    )
    scores = scored(place, step)
    assert {one.model for one in scores.requirements} == {"b", "c"}
    assert scores.forgotten(ENSEMBLE) is not None
    text = (place.folder / "scores.md").read_text()
    for line in text.splitlines():
        if line.startswith(("| retrieval", "| sts")):
            assert "**" not in "|".join(line.split("|")[-3:])


def test_one_member_is_no_ensemble(place: Bench, data: Path) -> None:
    with pytest.raises(RecipeError, match="at least two"):
        evaluation(data, "ab", "a").run(place)
    faults = [str(one) for one in evaluation(data, "ab", "a").check(Glance())]  # type: ignore[arg-type]
    assert not any("at least two" in one for one in faults)  # a step may lead to several models


def test_an_evaluator_that_opens_no_encoder_is_refused_before_the_run() -> None:
    step = Evaluate(
        models=(EvaluatedModel(model=ModelRef("$a")),),
        headroom=(ModelRef("$a"), ModelRef("$b")),
        evaluators=(Given(quality=QUALITY),),
    )
    faults = [str(one) for one in step.check(Glance())]  # type: ignore[arg-type]
    assert any("headroom" in one and "evaluation of its own" in one for one in faults)

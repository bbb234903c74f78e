"""mteb's register of models, and results that are not mteb's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError
from emberge.contracts import BoardEntry
from emberge_mteb.leaderboard import MtebLeaderboard

FACTS: dict[str, Any] = {
    "name": "me/soup",
    "revision": "c" * 40,
    "date": "2026-01-02",
    "licence": "mit",
    "languages": ["en"],
    "bases": ["acme/small"],
    "dimension": 32,
    "reference": "https://huggingface.co/me/soup",
    "trained_on": None,
    "results": [],
}

BOARD = MtebLeaderboard()


def result(folder: Path, task: str, revision: str, splits: tuple[str, ...] = ("test",)) -> Path:
    score = {"main_score": 0.5, "hf_subset": "default", "languages": ["eng-Latn"]}
    record = {
        "dataset_revision": revision,
        "task_name": task,
        "mteb_version": "2.10.0",
        "scores": {split: [score] for split in splits},
        "evaluation_time": 1.0,
        "kg_co2_emissions": None,
    }
    path = folder / f"{task}.json"
    path.write_text(json.dumps(record))
    return path


def entry(**changed: Any) -> BoardEntry:
    return BoardEntry(**{**FACTS, **changed})


def test_the_register_knows_what_some_models_were_trained_on() -> None:
    known = BOARD.tasks_trained_on("sentence-transformers/all-MiniLM-L6-v2")
    assert known is not None
    assert "MSMARCO" in known
    assert BOARD.tasks_trained_on("acme/small") is None


def test_only_results_on_mtebs_own_data_are_entered(bert: Path, tmp_path: Path) -> None:
    import mteb

    revision = mteb.get_task("STS12").metadata.dataset["revision"]
    given = [
        result(tmp_path, "STS12", revision),
        result(tmp_path, "STS13", "another"),
        result(tmp_path, "MyOwnTask", "1"),
    ]
    written = BOARD.write_entry(tmp_path / "board", bert, entry(results=given))
    assert {Path(file).name for file in written} == {"me__soup.py", "model_meta.json", "STS12.json"}


def test_terms_that_mteb_has_no_name_for_are_linked(bert: Path, tmp_path: Path) -> None:
    BOARD.write_entry(tmp_path, bert, entry(licence="acme-terms"))
    (file,) = tmp_path.rglob("model_meta.json")
    assert json.loads(file.read_text())["license"] == FACTS["reference"]


def test_facts_that_mteb_refuses_are_an_error_of_ours(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="mteb does not accept"):
        BOARD.write_entry(tmp_path, bert, entry(date="yesterday"))


def test_training_sets_that_are_no_tasks_of_mtebs_are_entered_too(
    bert: Path, tmp_path: Path
) -> None:
    """mteb's own code reads them back, and adds the tasks that are like those it knows."""
    from mteb.models import ModelMeta

    listed = ["STS12", "our mails"]
    BOARD.write_entry(tmp_path, bert, entry(trained_on=listed, bases=[]))
    (file,) = tmp_path.rglob("model_meta.json")
    facts = json.loads(file.read_text())
    facts.pop("is_cross_encoder")
    meta = ModelMeta.model_validate_json_resolved(json.dumps(facts).encode())
    assert meta.training_datasets == set(listed)
    known = meta.get_training_datasets()
    assert known is not None
    assert known >= set(listed)

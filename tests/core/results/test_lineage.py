"""Models outside a run by their references: names, revisions, and what a card beside them states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emberge.results import ancestors_outside, ancestry, model_outside, read_artifact


@pytest.mark.parametrize("text", ["acme/small@v1", "hf://acme/small@v1"])
def test_a_model_of_a_hub_is_known_by_its_id_however_it_is_read(text: str) -> None:
    found = model_outside(text, None)
    assert (found.name, found.revision, found.bases) == ("acme/small", "v1", ("acme/small",))
    assert found.link == "https://huggingface.co/acme/small/tree/v1"
    assert not found.card


def test_a_folder_is_looked_for_from_where_its_recipe_is(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "README.md").write_text("---\nlicense: mit\nlanguage: [de, no]\n---\n")
    found = model_outside("./small", tmp_path)
    assert (found.name, found.licence, found.languages) == ("./small", "mit", ("de", "no"))
    assert model_outside("./small", tmp_path / "elsewhere").licence is None
    assert not model_outside("pkg:no_such_module", tmp_path).card


def test_a_model_that_another_run_made_goes_back_to_what_its_record_names(tmp_path: Path) -> None:
    made = tmp_path / "earlier" / "tuned"
    made.mkdir(parents=True)
    details = {"base": "small", "base_reference": "acme/small"}
    record = {"kind": "model", "parents": ["small"], "details": details}
    (made / "artifact.json").write_text(json.dumps(record))
    assert [one.bases for one in ancestors_outside("./earlier/tuned", tmp_path)] == [
        ("acme/small",)
    ]
    for declared, place in ((["./earlier/tuned"], tmp_path), ([], tmp_path / "elsewhere")):
        names = [one.name for one in ancestors_outside("./earlier/tuned", place, declared)]
        assert names == ["./earlier/tuned"]


def test_training_sets_of_one_name_are_kept_apart_and_no_licence_is_lost(tmp_path: Path) -> None:
    """`first` and `second` share a set; `rows` has other tasks, sizes and licences under one name."""

    def used(task: str, rows: int, of: int, licence: str) -> dict[str, object]:
        return {"rows": {"task": task, "rows": rows, "of": of, "licence": licence}}

    steps = {
        "texts": ("acme/small", used("texts", 9, 9, "cc-by-4.0")),
        "pairs": ("$texts", used("retrieval", 9, 9, "cc-by-4.0")),
        "more": ("$pairs", used("retrieval", 9, 9, "mit")),
        "longer": ("$more", used("retrieval", 5, 12, "mit")),
        "again": ("$longer", used("retrieval", 7, 12, "mit")),
    }
    for name, (base, datasets) in steps.items():
        (tmp_path / name).mkdir()
        details = {"base": base, "datasets": datasets}
        record = {"kind": "model", "parents": [base], "details": details}
        (tmp_path / name / "artifact.json").write_text(json.dumps(record))
    artifact = read_artifact(tmp_path / "again")
    assert artifact is not None
    data = ancestry(artifact, tmp_path, tmp_path).data
    assert {(one.task, one.rows, one.whole, one.licence) for one in data} == {
        ("texts", 9, 9, "cc-by-4.0"),
        ("retrieval", 9, 9, "cc-by-4.0"),
        ("retrieval", 9, 9, "mit"),
        ("retrieval", 7, 12, "mit"),
    }
    assert [one.name for one in data] == ["rows"] * 4

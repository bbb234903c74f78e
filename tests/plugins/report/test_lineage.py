"""Models outside a run by their references: names, revisions, and what a card beside them states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact, Model, ModelRef
from emberge.contracts import BaseFacts, DataOrigin, TrainingDetails, from_json
from emberge_report.lineage import Ancestry, Parent, trace_ancestry

from tests.support.result_folders import artifact_of


@pytest.mark.parametrize("text", ["acme/small@v1", "hf://acme/small@v1"])
def test_a_model_of_a_hub_is_known_by_its_id_however_it_is_read(text: str, tmp_path: Path) -> None:
    found = find_parent(tmp_path, text, None)
    assert (found.name, found.revision, found.bases) == ("acme/small", "v1", ("acme/small",))
    assert found.link == "https://huggingface.co/acme/small/tree/v1"
    assert found.licence is None


def test_a_folder_is_looked_for_from_where_its_recipe_is(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "README.md").write_text("---\nlicense: mit\nlanguage: [de, no]\n---\n")
    found = find_parent(tmp_path / "made", "./small", tmp_path)
    assert (found.name, found.licence, found.languages) == ("small", "mit", ("de", "no"))
    for text in ("small+v2", "me@work/small"):
        (tmp_path / text).mkdir(parents=True)
        (tmp_path / text / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
        named = find_parent(tmp_path / text / "made", f"./{text}", tmp_path)
        assert (named.name, named.licence) == (Path(text).name, "apache-2.0")
    elsewhere = find_parent(tmp_path / "again", "./small", tmp_path / "elsewhere")
    assert elsewhere.licence is None
    assert find_parent(tmp_path / "third", "pkg:no_such_module", tmp_path).licence is None


def test_a_folder_is_named_by_hub_card_or_last_name_and_is_no_step(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--acme--small" / "snapshots" / "0a1b"
    carded, plain, adapter = (tmp_path / "hidden" / name for name in ("a", "plain", "ad"))
    for folder in (snapshot, carded, plain, adapter, tmp_path / "other" / "plain"):
        folder.mkdir(parents=True)
    (carded / "README.md").write_text("---\nmodel-index: [{name: Fine Name}]\n---\n")
    names = {
        f"{snapshot}": "acme/small",
        f"{carded}": "Fine Name",
        f"{plain}": "plain",
        "./hidden/plain/": "plain",
        f"{plain}+{adapter}": "plain+ad",
        "../hidden/ad": "ad",
    }
    for place, (text, name) in enumerate(names.items()):
        found = find_parent(tmp_path / "runs" / str(place), text, tmp_path / "recipes")
        assert (found.name, found.is_step) == (name, False)
    (tmp_path / "soup").mkdir()
    for named, told in (
        ([f"{plain}", f"{tmp_path}/other/plain"], ["hidden/plain", "other/plain"]),
        (["/x/p/final", "/y/p/final", "/z/q"], ["x/p/final", "y/p/final", "q"]),
        (["/x/m+/x/a d", "/y/m+/y/a d"], ["x/m+x/a d", "y/m+y/a d"]),
    ):
        record = {"kind": "model", "parents": named, "details": {}}
        (tmp_path / "soup" / "artifact.json").write_text(json.dumps(record))
        both = find_ancestry(tmp_path / "soup", tmp_path)
        for parents in (both.parents, both.roots):
            assert [one.name for one in parents] == told


def test_a_model_that_another_run_made_goes_back_to_what_its_record_names(tmp_path: Path) -> None:
    made = tmp_path / "earlier" / "tuned"
    made.mkdir(parents=True)
    base = {"name": "small", "reference": "acme/small"}
    record = {"kind": "model", "parents": ["small"], "base": base, "warnings": ["it is cut"]}
    (made / "artifact.json").write_text(json.dumps({**record, "origin": "changed"}))
    soup = write_result(tmp_path / "soup", "./earlier/tuned", {})
    assert find_ancestry(soup, tmp_path).warnings == ("tuned: it is cut",)
    assert [one.bases for one in find_ancestry(soup, tmp_path).roots] == [("acme/small",)]
    unseen = find_ancestry(soup, tmp_path / "elsewhere").roots
    assert [one.name for one in unseen] == ["tuned"]
    (made / "README.md").write_text("---\nlicense: mit\n---\n")
    licensed = find_ancestry(soup, tmp_path).roots
    assert [(one.name, one.licence) for one in licensed] == [("tuned", "mit")]


def test_the_model_that_a_step_changed_is_one_parent(tmp_path: Path) -> None:
    tuned = Model("tuned", tmp_path / "tuned", "0a1b")
    changed = tuned.describe_change(ModelRef("./tuned"), "cutting layers from", {})
    (parent,) = trace_ancestry(changed, tmp_path / "cut", tmp_path).parents
    assert (parent.name, parent.reference) == ("tuned", "./tuned")


def write_result(folder: Path, parent: str, datasets: dict[str, Any], reference: str = "") -> Path:
    """Write the record of a training of a model."""
    folder.mkdir(parents=True)
    details = {"datasets": datasets, "seed": 0, "steps": 1, "last_loss": 0.5, "learning_rate": 1e-5}
    artifact = Artifact(
        "model",
        parents=(parent,),
        details=from_json(TrainingDetails, details),
        base=BaseFacts(parent, reference),
    )
    (folder / "artifact.json").write_text(json.dumps(artifact.to_record()))
    return folder


def find_ancestry(folder: Path, origin: Path) -> Ancestry:
    artifact = artifact_of(folder)
    return trace_ancestry(artifact, folder, origin)


def find_parent(folder: Path, name: str, origin: Path | None) -> Parent:
    """Return the parent of a result that was trained from the model `name`."""
    artifact = artifact_of(write_result(folder / "tuned", name, {}))
    (parent,) = trace_ancestry(artifact, folder / "tuned", origin).parents
    return parent


def test_training_sets_of_one_name_are_kept_apart_and_no_licence_is_lost(tmp_path: Path) -> None:
    """`first` and `second` share a set; `rows` has other tasks, sizes and licences under one name."""

    def used(task: str, rows: int, of: int, licence: str) -> dict[str, Any]:
        return {"rows": {"task": task, "rows": rows, "of": of, "source": {"licence": licence}}}

    steps = {
        "texts": ("acme/small", used("texts", 9, 9, "cc-by-4.0")),
        "pairs": ("$texts", used("retrieval", 9, 9, "cc-by-4.0")),
        "more": ("$pairs", used("retrieval", 9, 9, "mit")),
        "longer": ("$more", used("retrieval", 5, 12, "mit")),
        "again": ("$longer", used("retrieval", 12, 12, "mit")),
    }
    for name, (base, datasets) in steps.items():
        write_result(tmp_path / name, base, datasets)
    data = find_ancestry(tmp_path / "again", tmp_path).data
    assert {(one.task, one.rows, one.whole, one.licence) for one in data} == {
        ("texts", 9, 9, "cc-by-4.0"),
        ("retrieval", 9, 9, "cc-by-4.0"),
        ("retrieval", 9, 9, "mit"),
        ("retrieval", 12, 12, "mit"),
    }
    assert [one.name for one in data] == ["rows"] * 4


def test_data_of_earlier_runs_are_known_even_if_their_models_have_licences(tmp_path: Path) -> None:
    """`tuned` continues a licensed model of another run, known by the folder's name; `soup` merges it."""
    facts = {"rows": 2, "of": 2, "source": {"licence": "mit", "written_by": ["t5"]}}
    earlier = write_result(tmp_path / "earlier" / "first", "acme/small", {"mails": facts})
    (earlier / "README.md").write_text("---\nlicense: mit\n---\n")
    run = tmp_path / "run"
    write_result(run / "tuned", "first", {"faq": {"rows": 1, "of": 1}}, "./earlier/first")
    soup = write_result(run / "soup", "$tuned", {})
    found = find_ancestry(soup, tmp_path)
    assert [(model.name, model.licence) for model in found.roots] == [("first", "mit")]
    assert [one.name for one in found.data] == ["faq", "mails"]
    mails = found.data[1]
    assert mails.origin == DataOrigin(licence="mit", written_by=("t5",))
    assert found.data[0].origin == DataOrigin()


def test_data_of_an_adapters_training_are_those_of_the_adapted_model(tmp_path: Path) -> None:
    write_result(tmp_path / "lora", "acme/small", {"faq": {"rows": 1, "of": 1}})
    write_result(tmp_path / "full", "acme/small", {"mails": {"rows": 1, "of": 1}})
    for main in ("acme/small", "$full"):
        soup = write_result(tmp_path / f"soup-{main[-4:]}", f"{main}+./lora", {})
        found = find_ancestry(soup, tmp_path)
        assert {one.name for one in found.data} == {"faq", *(["mails"] * (main == "$full"))}
        assert [model.name for model in found.roots] == ["acme/small"]

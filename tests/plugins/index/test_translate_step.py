"""The step `translate`, run from recipes on tiny real encoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge.cli.main import main
from emberge_index.translation.translation_file import read_translation

from tests.support import tiny
from tests.support.translations import pairs, recipe

Run = Callable[..., Path]


@pytest.fixture
def run(berts: list[Path], tmp_path: Path) -> Run:
    """Fit between two siblings and return the result's folder."""

    def done(step_kind: str = "translate", **options: Any) -> Path:
        given = {"old": str(berts[0]), "new": str(berts[1]), **options}
        path = recipe(tmp_path, step_kind, **given)
        assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
        return tmp_path / "out" / "made"

    return done


@pytest.mark.parametrize("kind", ["affine", "orthogonal", "shift", "low_rank"])
def test_each_kind_leaves_a_map_with_its_models_and_measures(
    run: Run, berts: list[Path], kind: str
) -> None:
    from emberge.model_folder import model_fingerprint

    folder = run(kind=kind, **({"rank": 4} if kind == "low_rank" else {}))
    header = read_translation(folder).header
    assert (header.kind, header.side, header.texts) == (kind, "documents", 80)
    assert header.source.fingerprint == model_fingerprint(berts[0])
    assert header.target.fingerprint == model_fingerprint(berts[1])
    details = json.loads((folder / "artifact.json").read_text())["details"]
    measures = details["translation"]["measures"]
    assert measures["cosine"]["p5"] <= measures["cosine"]["mean"] <= 1
    assert set(measures["overlap"]) == {"old", "untouched", "mapped"}
    assert set(measures["ndcg"]) == {"old", "untouched", "mapped", "new"}
    assert (folder / details["table"]).read_text().count("| ") >= 5


def embedded(folder: Path, texts: list[str], **how: Any) -> Any:
    """Vectors by plain SentenceTransformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return getattr(model, how.get("call", "encode"))(texts)


def test_the_verb_rewrites_the_old_models_vectors_as_the_map_does(
    run: Run, berts: list[Path], tmp_path: Path
) -> None:
    folder = run(kind="affine")
    texts = [row["pos"][0] for row in pairs(80)]
    old = embedded(berts[0], texts)
    np.save(tmp_path / "old.npy", old)
    words = ["--by", str(folder), "--out", str(tmp_path / "new.npy")]
    assert main(["translate", str(tmp_path / "old.npy"), *words]) == 0
    translation = read_translation(folder)
    wanted = translation.fitted(old)
    if translation.header.target.normalised:
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "new.npy"), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["shift", "orthogonal"])
def test_a_bridged_model_gives_its_mapped_vectors_in_plain_sentence_transformers(
    run: Run, berts: list[Path], kind: str
) -> None:
    from safetensors import safe_open

    folder = run("bridge", kind=kind)
    texts = [row["query"] for row in pairs(20, seed=5)]
    (dense,) = folder.glob("*_Dense/model.safetensors")
    with safe_open(str(dense), framework="numpy") as file:
        header = json.loads(file.metadata()["translation"])
        weight, bias = file.get_tensor("linear.weight"), file.get_tensor("linear.bias")
    wanted = embedded(berts[1], texts) @ weight.T + bias
    if header["target"]["normalised"]:
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(embedded(folder, texts), wanted, rtol=1e-4, atol=1e-4)
    assert (header["side"], header["source"]["name"]) == ("queries", berts[1].name)
    product = weight @ weight.T
    np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-5)
    assert (folder / "model.safetensors").read_bytes() == (
        berts[1] / "model.safetensors"
    ).read_bytes()


def test_a_router_embeds_queries_by_the_bridge_and_documents_by_the_old_model(
    run: Run, berts: list[Path]
) -> None:
    texts = [row["query"] for row in pairs(20, seed=5)]
    queries = embedded(run("bridge", kind="shift"), texts)
    both = run("bridge", kind="shift", router=True)
    found = embedded(both, texts, call="encode_query")
    np.testing.assert_allclose(found, queries, rtol=1e-5, atol=1e-5)
    found = embedded(both, texts, call="encode_document")
    np.testing.assert_allclose(found, embedded(berts[0], texts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"ridge": -1}, "ridge"),
        ({"kind": "low_rank", "rank": 0}, "rank"),
        ({"kind": "affine", "rank": 4}, "without `kind: low_rank`"),
        ({"ridge": 0, "rows": pairs(20)}, "more texts"),
        ({"ridge": 1e10}, "ridge"),
        ({"kind": "orthogonal", "rows": pairs(20)}, "kind: shift"),
        ({"old_prompt": "query: "}, "fit on queries"),
        ({"max_length": 0}, "max_length"),
        ({"texts": "queries", "rows": [{"text": row["query"]} for row in pairs(60)]}, "no queries"),
    ],
)
def test_bad_options_are_refused_with_the_remedy(
    berts: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
    place: str,
) -> None:
    import shutil

    old = tmp_path / "old"
    shutil.copytree(berts[0], old)
    settings = old / "config_sentence_transformers.json"
    settings.write_text(json.dumps({"prompts": {"query": "query: ", "document": "text: "}}))
    path = recipe(tmp_path, "translate", old=str(old), new=str(berts[1]), **options)
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) in (1, 2)
    assert place in " ".join(capsys.readouterr().err.split())


def test_dimensions_between_which_a_kind_has_no_map(
    berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = tiny.projected(tmp_path / "narrow")
    for kind in ("shift", "orthogonal"):
        path = recipe(tmp_path, "translate", old=str(berts[0]), new=str(narrow), kind=kind)
        assert main(["run", str(path), "--out", str(tmp_path / "out")]) in (1, 2)
        assert "kind: affine" in capsys.readouterr().err
    path = recipe(tmp_path, "translate", old=str(berts[0]), new=str(narrow))
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 0
    assert read_translation(tmp_path / "out" / "made").fitted.matrix.shape == (32, 8)


def test_the_header_and_the_tables_have_all_facts_of_the_fit(run: Run, berts: list[Path]) -> None:
    from safetensors import safe_open

    folder = run(kind="affine", ridge=0.5, old_prompt="text ", new_prompt="given ", max_length=6)
    with safe_open(str(folder / "translation.safetensors"), framework="numpy") as file:
        header, known = json.loads(file.metadata()["translation"]), file.metadata()["emberge"]
    assert json.loads(known)
    assert (header["ridge"], header["rank"], header["kind"]) == (0.5, None, "affine")
    assert (header["source"]["prompt"], header["target"]["prompt"]) == ("text ", "given ")
    assert (header["source"]["name"], header["target"]["name"]) == tuple(b.name for b in berts[:2])
    assert header["source"]["dimension"] == header["target"]["dimension"] == 32
    assert header["source"]["normalised"] is header["target"]["normalised"] is True
    artifact = json.loads((folder / "artifact.json").read_text())
    measures = json.loads((folder / "measures.json").read_text())
    assert measures == artifact["details"]["translation"]
    assert measures["side"] == "documents"
    assert (artifact["kind"], artifact["parents"]) == ("file", [b.name for b in berts[:2]])
    lines = (folder / "measures.md").read_text().splitlines()
    assert lines[0] == f"# {berts[0].name} to {berts[1].name}: affine"
    cut = read_translation(folder).fitted.matrix
    whole = read_translation(run(kind="affine", ridge=0.5, old_prompt="text ", new_prompt="given "))
    assert not np.allclose(whole.fitted.matrix, cut)


def test_a_fit_on_queries_is_of_their_side_and_prompts(berts: list[Path], tmp_path: Path) -> None:
    import shutil

    old = tmp_path / "old"
    shutil.copytree(berts[0], old)
    settings = old / "config_sentence_transformers.json"
    settings.write_text(json.dumps({"prompts": {"query": "text ", "document": "given "}}))
    path = recipe(tmp_path, "translate", old=str(old), new=str(berts[1]), texts="queries")
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    header = read_translation(tmp_path / "out" / "made").header
    assert (header.side, header.source.prompt, header.target.prompt) == ("queries", "text ", "")
    path = recipe(tmp_path, "translate", old=str(old), new=str(berts[1]))
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert read_translation(tmp_path / "out" / "made").header.source.prompt == "given "


def test_a_width_is_known_from_files_where_no_module_changes_it(
    berts: list[Path], tmp_path: Path
) -> None:
    from emberge_index.translation.two_models import _find_width

    assert _find_width(berts[0]) == 32
    assert _find_width(tiny.projected(tmp_path / "narrow")) is None


def test_check_counts_the_texts_of_all_data(
    berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"old": str(berts[0]), "new": str(berts[1]), "ridge": 0}
    path = recipe(tmp_path, "translate", rows=pairs(20), **given)
    assert main(["check", str(path)]) == 2
    assert "40 texts are too few" in " ".join(capsys.readouterr().err.split())
    path = recipe(tmp_path, "translate", rows=pairs(21), **given)
    assert main(["check", str(path)]) == 0


def test_a_bridges_folder_says_what_it_is(run: Run, berts: list[Path]) -> None:
    folder = run("bridge", kind="shift")
    artifact = json.loads((folder / "artifact.json").read_text())
    assert artifact["kind"] == "model"
    assert artifact["details"]["table"] == "measures.md"
    assert artifact["details"]["translation"]["ridge"] is None
    assert artifact["details"]["translation"]["rank"] is None
    measures = artifact["details"]["translation"]["measures"]
    assert measures["texts"] == 80
    assert 0 < measures["cosine"]["p5"] <= measures["cosine"]["mean"] <= 1
    lines = (folder / "measures.md").read_text().splitlines()
    assert lines[0] == f"# {berts[1].name} to {berts[0].name}: shift"
    modules = json.loads((folder / "modules.json").read_text())
    assert [one["type"].rpartition(".")[2] for one in modules][-2:] == ["Dense", "Normalize"]
    (config,) = folder.glob("*_Dense/config.json")
    assert json.loads(config.read_text())["bias"] is True


def test_a_bare_transformer_cannot_be_bridged(
    berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(berts[1], bare)
    (bare / "modules.json").unlink()
    path = recipe(tmp_path, "bridge", old=str(berts[0]), new=str(bare))
    assert main(["check", str(path)]) == 2
    error = capsys.readouterr().err
    assert "modules.json" in error
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if '"new":' in text)
    assert f"{path.name}:{line}: " in error


@pytest.mark.parametrize(("kind", "code"), [("translate", 2), ("bridge", 0)])
def test_a_bridge_is_a_model_to_other_steps_and_a_map_is_none(
    berts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, code: int
) -> None:
    path = recipe(tmp_path, kind, old=str(berts[0]), new=str(berts[1]))
    steps = json.loads(path.read_text())["steps"]
    steps["soup"] = {"merge": {"models": ["$made", str(berts[1])], "strategy": "linear"}}
    path.write_text(json.dumps({"steps": steps}, indent=1), "utf-8")
    assert main(["check", str(path)]) == code
    assert ("$made makes a file" in " ".join(capsys.readouterr().err.split())) == bool(code)

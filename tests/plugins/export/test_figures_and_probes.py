"""Figures, probes and packages, without a runtime of another kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import DataError, load_plugins
from emberge_export import export_step, parity
from emberge_export.export_step import Export
from emberge_export.parity import mean_ndcg, measured
from emberge_export.probe import Probe, read_probe

# ── probes ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    """Two retrieval sets of twelve queries, and one of pairs before them."""
    entries = ["- {name: pairs, dir: one, task: sts}"]
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for file, kind in (("corpus", "d"), ("queries", "q")):
            rows = [{"_id": f"{kind}{n}", "text": f"{name} {kind} {n}"} for n in range(12)]
            (folder / f"{file}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (folder / "qrels.tsv").write_text("\n".join(f"q{n}\td{n}\t{1 + n % 2}" for n in range(12)))
        entries.append(f"- {{name: {name}, dir: {name}, task: retrieval}}")
    path = tmp_path / "catalogue.yaml"
    path.write_text("\n".join(["format: 1", "eval:", *entries]))
    return path


@pytest.fixture(scope="module")
def readers() -> Sequence[Any]:
    return [one.type() for one in load_plugins().components if one.kind == "reader"]


def test_without_a_catalogue_sentences_are_embedded_and_nothing_is_judged() -> None:
    found = read_probe(None, None, (), 5)
    assert found.name == "sentences"
    assert list(found.documents) == [str(n) for n in range(16)]
    assert found.documents["0"] == "a cat"
    assert found.queries == {}
    assert found.relevant == {}


def test_a_probe_is_the_first_retrieval_set_or_the_named_one(
    catalogue: Path, readers: Sequence[Any]
) -> None:
    first = read_probe(catalogue, None, readers, 12)
    assert first.name == "one"
    assert first.documents["d3"] == "one d 3"
    assert first.queries["q4"] == "one q 4"
    assert first.relevant["q5"] == {"d5": 2}
    assert read_probe(catalogue, "two", readers, 12).documents["d3"] == "two d 3"
    few = read_probe(catalogue, None, readers, 4)
    assert len(few.queries) == 4
    assert few.relevant.keys() == few.queries.keys()
    with pytest.raises(DataError, match=r"catalogue\.yaml: has no retrieval set"):
        read_probe(catalogue, "pairs", readers, 12)


def test_a_probe_may_be_a_file_of_rows(tmp_path: Path, readers: Sequence[Any]) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"query": "Q", "pos": "P"}\n')
    found = read_probe(path, None, readers, 12)
    assert found == Probe("own", {"d0": "P"}, {"q0": "Q"}, {"q0": {"d0": 1}})


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────


def test_ndcg_has_linear_gains_discounts_of_places_and_ten_of_them() -> None:
    documents = {f"d{n}": str(n) for n in range(12)}
    rows = np.eye(12)
    query = np.linspace(1, 0.1, 12)[None]  # ranks the documents in their order
    for grades, expected in (
        ({"d0": 3, "d1": 1}, 1.0),
        ({"d0": 1, "d1": 3}, (1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3))),
        ({"d9": 1}, 1 / np.log2(11)),
        ({"d10": 1}, 0.0),
        ({"d0": -1, "d1": 1}, 1 / np.log2(3)),
        ({"d0": 0}, 0.0),
    ):
        probe = Probe("p", documents, {"q": "?"}, {"q": grades})
        assert mean_ndcg({"documents": rows, "queries": query}, probe) == pytest.approx(expected)
    long = {"documents": rows * np.arange(1, 13)[:, None], "queries": query * 9}
    probe = Probe("p", documents, {"q": "?"}, {"q": {"d0": 1}})
    assert mean_ndcg(long, probe) == 1.0, "lengths of vectors do not count"


class Model:
    """A model whose texts are numbers of a row."""

    def encode_document(self, texts: Sequence[str]) -> Any:
        return np.asarray([[1.0, float(text)] for text in texts], np.float16)

    encode_query = encode_document


def test_measuring_tells_what_it_does_and_reads_sizes_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import contextlib

    written: list[tuple[str, Path]] = []

    class Exporting:
        def __init__(self, folder: Path) -> None:
            assert folder == tmp_path
            self.model = Model()

        def write(self, name: str, path: Path) -> int:
            written.append((name, path))
            return 1_500_000

        def load(self, path: Path) -> contextlib.AbstractContextManager[Model]:
            return contextlib.nullcontext(self.model)

    monkeypatch.setattr(parity, "Exporting", Exporting)
    (tmp_path / "2_Dense").mkdir()
    for name in ("model.safetensors", "2_Dense/model.safetensors"):
        (tmp_path / name).write_bytes(b"x" * 500_000)
    types = {"": "Transformer", "2_Dense": "Dense"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(types.items())
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    told: list[object] = []
    probe = Probe("p", {"a": "1", "b": "2"})
    files = {"float32": "onnx/a.onnx", "int8": "onnx/b.onnx"}
    found = measured(tmp_path, files, probe, progress=lambda *one: told.append(one))
    assert told == [(0, 2, "float32"), (1, 2, "int8")]
    assert written == [(name, tmp_path / file) for name, file in files.items()]
    assert list(found) == ["torch", "float32", "int8"]
    assert (found["torch"].file, found["torch"].megabytes) == ("model.safetensors", 1.0)
    assert (found["int8"].file, found["int8"].megabytes) == ("onnx/b.onnx", 1.5)
    assert found["int8"].cosine == found["int8"].least_cosine == 1.0
    assert found["int8"].ndcg_at_10 is None
    assert all(one.texts_per_second > 0 < one.texts_per_cpu_second for one in found.values())
    measured(tmp_path, files, probe)


# ── packages ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("formats", "missing"),
    [
        (("float32", "int8"), ["onnx", "onnxscript", "onnxruntime"]),
        (("openvino",), ["openvino"]),
        (("float16", "openvino"), ["onnx", "onnxscript", "onnxruntime", "openvino"]),
        ((), []),
    ],
)
def test_packages_are_those_of_the_formats(
    formats: Any, missing: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from emberge import ModelRef

    step = Export(model=ModelRef("./m"), formats=formats)
    monkeypatch.setattr(export_step, "find_spec", lambda _: None)
    assert step._find_missing() == missing
    monkeypatch.setattr(export_step, "find_spec", lambda _: "there")
    assert step._find_missing() == []

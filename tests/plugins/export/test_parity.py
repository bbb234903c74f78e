"""An export whose embeddings differ from the model's is not published."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emberge import (
    CheckpointError,
    Plugins,
    RequirementError,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.results import read_artifact
from emberge_export import Parity, Probe, measured, parity, require_same, too_lossy


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


@pytest.fixture
def model(bert: Path, tmp_path: Path) -> Path:
    shutil.copytree(bert, tmp_path / "model")
    return tmp_path / "model"


def export(model: Path, plugins: Plugins, options: str = "formats: [float32]") -> Path:
    text = f"steps:\n  served:\n    export: {{model: ./model, {options}}}\n"
    recipe = parse_recipe(text, plugins, path=model.parent / "recipe.yaml")
    return Path(run_recipe(recipe, model.parent / "out", plugins, quiet=True)["served"])


# ── a runtime that gives other embeddings ───────────────────────────────────────────────────────────

Rows = Callable[[Sequence[str]], np.ndarray[Any, Any]]
PROBE = Probe(
    "words",
    {"d1": "one", "d2": "two", "d3": "three"},
    {"q1": "find one", "q2": "find two"},
    {"q1": {"d1": 1}, "q2": {"d2": 1}},
)
# A direction for each text; a query has that of the document it is about.
PLACES = {"one": 0, "two": 1, "three": 2, "find one": 0, "find two": 1}


def rows_of(texts: Sequence[str]) -> Any:
    return np.eye(4)[[PLACES[text] for text in texts]]


class Model:
    """A model with one way for documents and one for queries."""

    def __init__(self, documents: Rows = rows_of, queries: Rows = rows_of) -> None:
        self.encode_document, self.encode_query = documents, queries


@pytest.fixture
def runtimes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Mapping[str, Parity]]:
    """Measure a model and what each runtime makes of it."""

    def measure(own: Model, **others: Model) -> Mapping[str, Parity]:
        class Exporting:
            def __init__(self, _: Path) -> None:
                self.model = own

            def write(self, name: str, _: Path) -> int:
                return 2_000_000

            @contextmanager
            def load(self, path: Path) -> Iterator[Model]:
                before = vars(self.model).copy()
                vars(self.model).update(vars(others[path.name]))
                yield self.model
                vars(self.model).update(before)

        monkeypatch.setattr(parity, "Exporting", Exporting)
        return measured(tmp_path, {name: name for name in others}, PROBE)

    return measure


def test_an_export_with_embeddings_that_are_no_numbers_is_refused(runtimes: Any) -> None:
    def broken(texts: Sequence[str]) -> Any:
        return np.where(np.arange(4) == 3, np.nan, rows_of(texts))

    with pytest.raises(CheckpointError, match="export as float16 gives 3 of 5 texts"):
        runtimes(Model(), float16=Model(documents=broken))
    with pytest.raises(CheckpointError, match="the model gives 2 of 5 texts"):
        runtimes(Model(queries=broken))


def test_the_least_cosine_is_that_of_the_worst_text(runtimes: Any) -> None:
    def one_off(texts: Sequence[str]) -> Any:
        found = rows_of(texts)
        found[-1] = found[-1] * 0.6 + np.eye(4)[3] * 0.8
        return found

    for off in (Model(documents=one_off), Model(queries=one_off)):
        found = runtimes(Model(), int8=off)["int8"]
        assert found.least_cosine == pytest.approx(0.6)
        assert found.cosine == pytest.approx((4 + 0.6) / 5)


# ── what is required of the figures ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["float32", "openvino"])
def test_a_cosine_that_is_no_number_fails(kind: str) -> None:
    with pytest.raises(CheckpointError, match=kind):
        require_same("acme/small", {kind: Parity("f", 1, 1, float("nan"), None, 1, 1)})


@pytest.mark.parametrize(
    ("before", "after", "most", "fails"),
    [
        (0.9, 0.8, 0.05, True),
        (0.9, 0.8, 0.2, False),
        (0.8, 0.9, 0.0, False),  # a gain is no loss
        (0.8, 0.9, 0.05, False),
        (0.5, 0.5, 0.0, False),
        (0.9, float("nan"), 0.5, True),
        (None, 0.1, 0.0, False),
    ],
)
def test_int8_fails_where_it_loses_more_than_it_may(
    before: float | None, after: float, most: float, fails: bool
) -> None:
    found = {
        "torch": Parity("f", 1, 1, 1, before, 1, 1),
        "int8": Parity("f", 1, 1, 1, after, 1, 1),
    }
    assert bool(too_lossy(found, most)) == fails
    assert not too_lossy({"torch": found["torch"], "float16": found["int8"]}, most)


EXACT = {"megabytes": 1, "texts_per_second": 2, "texts_per_cpu_second": 3, "cosine": 1}
FIGURES = {
    "torch": Parity("model.safetensors", 1, 1, 1, 0.9, 2, 3),
    "int8": Parity("onnx/model_int8.onnx", 1, 0.99, 0.9, 0.8, 2, 3),
    "float32": Parity("onnx/model.onnx", 1, 1, 1, None, 2, 3),
}
LOST = (
    "on sentences int8 loses 0.1000 nDCG@10 and may lose 0.02 (most_loss); leave int8 out, serve "
    "float16, or allow more"
)


@pytest.mark.parametrize(("options", "fails"), [("", True), (", most_loss: 0.2", False)])
def test_a_run_fails_by_the_loss_of_int8_and_keeps_the_model(
    model: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch, options: str, fails: bool
) -> None:
    asked: list[Any] = []

    def measure(folder: Path, files: Mapping[str, str], probe: Probe, progress: Any) -> Any:
        asked.append(files)
        assert (folder / "model.safetensors").is_file()
        progress(1, 2, "int8")
        return FIGURES

    monkeypatch.setattr(parity, "measured", measure)
    with pytest.raises(RequirementError, match="int8 loses") if fails else nullcontext():
        export(model, plugins, f"formats: [int8, openvino]{options}")
    assert asked == [{"int8": "onnx/model_int8.onnx", "openvino": "openvino/openvino_model.xml"}]
    folder = model.parent / "out" / "served"
    artifact = read_artifact(folder)
    assert artifact is not None
    details = dict(artifact.details)
    assert details.pop("base_fingerprint")
    assert details.pop("unmet", []) == [LOST] * fails
    assert details == {
        "made_by": "exporting",
        "base": "model",
        "base_reference": "./model",
        "probe": "sentences",
        "exported": {
            "torch": {**EXACT, "least_cosine": 1, "file": "model.safetensors", "ndcg_at_10": 0.9},
            "int8": {
                **EXACT,
                **{"file": "onnx/model_int8.onnx", "cosine": 0.99, "least_cosine": 0.9},
                "ndcg_at_10": 0.8,
            },
            "float32": {**EXACT, "least_cosine": 1, "file": "onnx/model.onnx"},
        },
    }

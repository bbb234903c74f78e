"""The merge of sentence-transformers, which is mergekit's, gives the same tensors for each kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
from emberge import PerTensor
from emberge.merging import MergeInput

from tests.support import tiny
from tests.support.chains import chain
from tests.support.merges import merge_models

WEIGHTS = (0.5, 0.3, 0.2)
# Classes of sentence-transformers, and what writes a model of each: the first with two Dense modules.
KINDS = {
    "SentenceTransformer": tiny.projected,
    "CrossEncoder": tiny.reranker,
    "SparseEncoder": tiny.splade,
    "MultiVectorEncoder": tiny.colbert,
}
# Our options beside sentence-transformers', and how far numbers may differ: mergekit takes angles in float32.
# Of changes of equal magnitude its TIES keeps others; these models have none.
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "linear": ({}, {"weight": [*WEIGHTS]}, 1e-5),
    "slerp": ({"linear_threshold": 0.9995}, {"t": 0.3}, 1e-3),
    "karcher": ({"max_iter": 10, "tol": 1e-5}, {}, 1e-3),
    "ties": ({}, {"weight": [*WEIGHTS], "density": 0.4}, 1e-5),
}


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        # All kinds are written alike: one row and one column of the table are quick.
        pytest.param(
            k, m, marks=[] if k == "SentenceTransformer" or m == "ties" else pytest.mark.slow
        )
        for k in KINDS
        for m in METHODS
    ],
)
def test_the_merge_of_sentence_transformers_gives_the_same_tensors(
    kind: str, method: str, tmp_path: Path
) -> None:
    cls = getattr(sentence_transformers, kind)
    ours, theirs, tolerance = METHODS[method]
    count = 2 if method == "slerp" else 3
    base, *folders = [KINDS[kind](tmp_path / f"m{i}", seed=i) for i in range(count + 1)]
    based = {"base_model": str(base)} if method == "ties" else {}
    expected = cls.merge([str(f) for f in folders], method, parameters=theirs, **based)
    weights = theirs.get("weight", [1.0] * count)
    merge_models(
        [MergeInput(f.name, f, PerTensor(w)) for f, w in zip(folders, weights, strict=True)],
        strategy=chain(method, **ours, **{k: v for k, v in theirs.items() if k != "weight"}),
        base=MergeInput("base", base) if based else None,
        out=tmp_path / "out",
    )
    found = cls(str(tmp_path / "out"), device="cpu").state_dict()
    assert found.keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        assert float((found[name] - tensor).abs().max()) <= tolerance, name

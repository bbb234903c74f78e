"""Every dense architecture is upcycled, loaded, trained and merged."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge import load_plugins, parse_recipe, run_recipe
from emberge.encoding import TextEmbedder
from emberge_encoder import TextEncoder
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from tests.support import tiny
from tests.support.routable import dense
from tests.support.tolerance import of_pass

TEXTS = [" ".join(tiny.WORDS[start : start + 1 + start % 7]) for start in range(12)]
PAIRS = [(" ".join(tiny.WORDS[i : i + 3]), " ".join(tiny.WORDS[i + 1 : i + 4])) for i in range(16)]
UPCYCLED = """
x-training: &training
  model: $routed
  data: ./pairs.jsonl
  loss: infonce
  sampler: {batch_shuffle: {batch_size: 8}}
  backbone: {routed: {balance: 0.1}}
  learning_rate: 1e-3
  max_steps: 2
steps:
  routed:
    upcycle: {model: ./dense, experts: 4, top_k: 2, layers: LAYERS}
"""
TRAINED = """
  first:
    train: {<<: *training, seed: 1}
  second:
    train: {<<: *training, seed: 2}
  merged:
    merge: {models: [$first, $second]}
"""


@dataclass(frozen=True)
class Row:
    """A dense type with changes of its config, and the layers that are routed."""

    kind: str
    layers: str = "alternate"
    changes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.kind, self.layers, *map(str, self.changes)])


ROWS = [
    Row("bert"),
    Row("qwen3", "[0, 2]", {"is_causal": False}),
    Row("xlm-roberta", "all"),
    Row("jina_embeddings_v3"),
    Row("modernbert"),
    Row("gemma3_text"),
    Row("mistral", changes={"sliding_window": 4}),
    Row("granite"),
    Row("llama", changes={"mlp_bias": True}),
    Row("eurobert", "all", {"attention_bias": True}),
]


def embedded(folder: Path) -> np.ndarray[Any, Any]:
    """Return what sentence-transformers makes of the texts."""
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    return np.asarray(model.encode(TEXTS, batch_size=1))


def tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def made(row: Row, place: Path, text: str) -> tuple[Path, Path]:
    """Run steps on a row's model, and return its folder and that of the results."""
    source = dense(place / "dense", row.kind, **row.changes)
    lines = [json.dumps({"anchor": anchor, "positive": positive}) for anchor, positive in PAIRS]
    (place / "pairs.jsonl").write_text("\n".join(lines))
    plugins, out = load_plugins(), place / "out"
    recipe = parse_recipe(
        text.replace("LAYERS", row.layers), path=place / "r.yaml", plugins=plugins
    )
    run_recipe(recipe, out, plugins=plugins, quiet=True)
    return source, out


@pytest.mark.parametrize(
    "row", [ROWS[0], *(pytest.param(row, marks=pytest.mark.slow) for row in ROWS[1:])], ids=str
)
def test_an_upcycled_model_embeds_as_its_dense_model(row: Row, tmp_path: Path) -> None:
    source, out = made(row, tmp_path, UPCYCLED)
    # sentence-transformers makes the same embeddings of both.
    assert np.abs(embedded(out / "routed") - embedded(source)).max() < 1e-5


def test_trained_siblings_are_merged(tmp_path: Path) -> None:
    source, out = made(ROWS[0], tmp_path, UPCYCLED + TRAINED)
    # Two steps change experts and routers, and what was saved embeds as it did in the training's encoder.
    routed, first, second = (tensors(out / name) for name in ("routed", "first", "second"))
    moved = {name for name in routed if not torch.equal(routed[name], first[name])}
    assert any("expert" in name or "_linear" in name for name in moved)
    assert any(name.endswith(("gate.weight", "router.weight", "layer.weight")) for name in moved)
    encoder = TextEncoder().load(out / "first", device="cpu", dtype="float32")
    ours = TextEmbedder(encoder).embed(TEXTS)
    assert np.abs(ours - embedded(out / "first")).max() < of_pass(source)

    # Siblings merge expert by expert.
    mean = {name: (first[name].double() + second[name].double()) / 2 for name in first}
    assert_equal(tensors(out / "merged"), {n: t.to(first[n].dtype) for n, t in mean.items()})


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []

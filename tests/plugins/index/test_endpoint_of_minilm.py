"""Servers of the real all-MiniLM-L6-v2: every fault, twenty pairs of them, and a hundred right ones."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emberge.cli.main import main
from emberge_export import load_runtime
from safetensors.numpy import load_file, save_file

from tests.support import tiny
from tests.support.vector_service import PAIRS, SINGLES, misconfigured, open_stock, serving_vectors

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM with prompts, so that they can be forgotten, and its passport with canaries."""
    folder = tmp_path_factory.mktemp("minilm") / "model"
    shutil.copytree(tiny.minilm(), folder)
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    prompts = {"query": "search query: ", "document": "passage of a page: "}
    path.write_text(json.dumps({**settings, "prompts": prompts, "similarity_fn_name": "cosine"}))
    assert main(["space", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def sibling(folder: Path) -> Path:
    """A model of the family: a third of its weights' spread away."""
    other = folder.with_name("sibling")
    shutil.copytree(folder, other)
    draw = np.random.default_rng(0)
    weights = load_file(other / "model.safetensors")
    for name, values in weights.items():
        if values.ndim == 2:
            noise = draw.standard_normal(values.shape).astype(np.float32)
            weights[name] = values + 0.3 * values.std() * noise
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    return other


def _check(folder: Path, url: str, out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["space", str(folder), "--endpoint", url, "--json", str(out), *words])
    return code, json.loads(out.read_text())


def _require_named(folder: Path, sibling: Path, faults: Sequence[str], out: Path) -> None:
    words, served = ["--candidates", str(sibling)], list(faults)
    if "prompt_doubled" in faults:
        words.append("--send-prompts")
        served.remove("prompt_doubled")
    with serving_vectors(misconfigured(folder, served, other=sibling)) as service:
        code, found = _check(folder, service.url, out, *words)
    assert sorted(cause["name"] for cause in found["causes"]) == sorted(faults), found
    assert code == 4


@pytest.mark.parametrize("fault", SINGLES)
def test_each_fault_is_named(folder: Path, sibling: Path, tmp_path: Path, fault: str) -> None:
    _require_named(folder, sibling, [fault], tmp_path / "found.json")


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_faults_are_named(
    folder: Path, sibling: Path, tmp_path: Path, pair: tuple[str, str]
) -> None:
    _require_named(folder, sibling, pair, tmp_path / "found.json")


def _embed_with(
    model: Any, texts: list[str], batch: int, *, shuffled: bool, dtype: torch.dtype | None
) -> np.ndarray:
    """Vectors of texts in the order given, embedded in batches of other texts and another order."""
    order = list(range(len(texts)))
    if shuffled:
        random.Random(len(texts)).shuffle(order)
    context = contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)
    with context:
        rows = model.encode([texts[i] for i in order], prompt_name="document", batch_size=batch)
    back = np.empty_like(rows)
    back[order] = rows
    return back.astype(np.float64)


def test_no_right_server_is_told_to_be_another(folder: Path, tmp_path: Path) -> None:
    recipe = {
        "steps": {
            "programs": {"export": {"model": str(folder), "formats": ["float32", "openvino"]}}
        }
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "recipe.yaml"), "--out", str(out), "--quiet"]) == 0
    programs = [
        path
        for path in sorted((out / "programs").rglob("*"))
        if path.suffix in (".onnx", ".xml") and "int8" not in path.name and "q" not in path.stem
    ]
    assert {path.suffix for path in programs} >= {".onnx", ".xml"}
    model, distances, seconds = open_stock(folder), [], []
    runtimes: list[tuple[Path | None, torch.dtype | None]] = [
        *((None, dtype) for dtype in (None, torch.bfloat16, torch.float16)),
        *((path, None) for path in programs[:2]),
    ]
    threads = torch.get_num_threads()
    try:
        for (path, dtype), count, batch, shuffled in itertools.product(
            runtimes, (1, 2), (1, 3, 8, 16, 34), (False, True)
        ):
            torch.set_num_threads(count)
            with contextlib.nullcontext() if path is None else load_runtime(model, path):

                def embed(texts: list[str], options: Any = (batch, shuffled, dtype)) -> np.ndarray:
                    size, mixed, kind = options
                    return _embed_with(model, texts, size, shuffled=mixed, dtype=kind)

                with serving_vectors(embed) as service:
                    start = time.perf_counter()
                    code, found = _check(folder, service.url, tmp_path / "found.json")
                    seconds.append(time.perf_counter() - start)
            assert code == 0, (path, dtype, count, batch, shuffled, found)
            distances.append(found["distance"])
    finally:
        torch.set_num_threads(threads)
    assert len(distances) == 100
    print(f"\nlargest distance {max(distances):.4f}, median {statistics.median(distances):.5f}")
    print(f"seconds a check: median {statistics.median(seconds):.2f}, most {max(seconds):.2f}")

"""Fusion by layers beside a linear merge of the same six files: wall, CPU, memory, and the same bytes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.measure import Cost, median, run, warm

GROUPS = ("retrieval", "similarity")
MODELS = 6  # three checkpoints a group
# At most so many times the wall time of the linear merge.
LIMITS = {"norms from a file": 1.3, "own norms": 2.2}


def compare_fusion(emberge: Path, checkpoints: Sequence[Path], out: Path, repeat: int) -> None:
    """Run all merges in turn, `repeat` times, and print a line for each."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    merges = _merges(checkpoints, _norms(emberge, checkpoints, out))
    costs: dict[str, list[Cost]] = {name: [] for name in merges}
    for _ in range(repeat):
        for name, step in merges.items():
            warm(checkpoints)
            costs[name].append(_run(emberge, {"merge": step}, out / name))
    linear = median(costs["linear of six"])
    for name, found in costs.items():
        cost = median(found)
        times = [cost.wall / linear.wall, cost.cpu / linear.cpu]
        limit = f", at most {LIMITS[name]:g}" if name in LIMITS else ""
        shown = f"{cost.wall:8.2f}{cost.cpu:8.2f}{cost.anonymous / 1e6:9.0f}{times[0]:7.2f}"
        print(f"{'layer_softmax':<20}{name:<18}{shown}  {times[1]:.2f} in CPU{limit}", flush=True)
    for name in LIMITS:
        print(
            f"{'layer_softmax':<20}{name:<18}{_same(emberge, merges[name], out / name)}", flush=True
        )


def _norms(emberge: Path, checkpoints: Sequence[Path], out: Path) -> Path:
    """Measure the norms of a specialist of each group, and return their file."""
    base, *models = checkpoints
    specialists = zip(GROUPS, models[:: MODELS // len(GROUPS)], strict=False)
    step = {"base": str(base), "models": {group: str(model) for group, model in specialists}}
    _run(emberge, {"measure_statistics": step}, out / "norms")
    return out / "norms" / "made" / "statistics.safetensors"


def _merges(checkpoints: Sequence[Path], norms: Path) -> dict[str, dict[str, Any]]:
    base, *models = map(str, checkpoints)
    each = MODELS // len(GROUPS)
    entries = [{"model": m, "group": GROUPS[i // each]} for i, m in enumerate(models[:MODELS])]
    fused = {"base": base, "models": entries}
    return {
        "linear of six": {"models": models[:MODELS], "strategy": "linear"},
        "norms from a file": {
            **fused,
            "strategy": ["group", {"layer_softmax": {"deltas": str(norms)}}],
        },
        "own norms": {**fused, "strategy": ["group", "layer_softmax"]},
    }


def _run(emberge: Path, step: Mapping[str, Any], out: Path, *options: str) -> Cost:
    shutil.rmtree(out, ignore_errors=True)
    recipe = out.with_suffix(".yaml")
    recipe.write_text(yaml.safe_dump({"steps": {"made": dict(step)}}))
    words = [str(emberge), "run", str(recipe), "--out", str(out), "--quiet", *options]
    return run(words, {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"})


def _same(emberge: Path, step: Mapping[str, Any], out: Path) -> str:
    """Return in words whether one worker and two write the same bytes."""
    found = []
    for workers in ("1", "2"):
        _run(emberge, {"merge": step}, out, "--workers", workers)
        files = sorted((out / "made").glob("*.safetensors"))
        found.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])
    return f"bytes with 1 and 2 workers: {'equal' if found[0] == found[1] else 'DIFFERENT'}"

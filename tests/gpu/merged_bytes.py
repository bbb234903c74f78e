"""Merges on the device beside the same merges on the CPU: equal bytes, or how far apart they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.bench_run import BenchRun
from tests.gpu.bench_table import Row

PART = "merge"
# BERT-base's shape, and one that is built in a second.
FULL = {"vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
SMALL: dict[str, int] = {}
# A value is another one when it is further off than this share of its tensor's largest; of a method that
# chooses among changes, so many values may be others, as a sum in another order may turn a tie.
NEAR, OTHERS = 1e-4, 1e-4


@dataclass(frozen=True)
class Method:
    """A merge: its strategy and options, how many models it takes, with a base or not.

    `elementwise` methods make each number of the same numbers alone, and have equal bytes on every device.
    """

    strategy: str
    models: int = 3
    base: bool = False
    elementwise: bool = False
    options: tuple[str, ...] = ()
    in_small: bool = False


METHODS = (
    Method("linear", elementwise=True, in_small=True),
    Method("task_arithmetic", base=True, elementwise=True),
    Method(
        "dare_linear",
        base=True,
        elementwise=True,
        options=("density=0.5", "rescale_mode=inverse_density"),
    ),
    Method("sign_consensus", base=True, elementwise=True),
    Method("slerp", models=2, in_small=True),
    Method("multi_slerp"),
    Method("karcher"),
    Method("model_stock", base=True),
    Method("ties", base=True, options=("density=0.5",)),
    Method("della", base=True, options=("density=0.5",)),
    Method("sce", base=True, options=("select_topk=0.5",)),
    Method("breadcrumbs", base=True, options=("density=0.5",)),
    Method("iso_c", base=True),
    Method("tsv_m", base=True),
)


def run_merges(run: BenchRun) -> Iterator[Row]:
    """Yield a row for each method: whether the device's bytes are the CPU's, and both times."""
    place = run.folder / "merges"
    shutil.rmtree(place, ignore_errors=True)
    base, *models = _build(place / "models", run.small)
    for method in METHODS:
        if run.small and not method.in_small:
            continue
        yield _row(run, method, base, models[: method.models], place)


def _build(folder: Path, small: bool) -> list[Path]:
    """Write a base and three noisy siblings."""
    from tests.support import tiny

    sizes = SMALL if small else FULL
    base = tiny.checkpoint(folder / "base", **sizes)
    siblings = [
        tiny.checkpoint(folder / f"model{i}", seed=i, like=base, **sizes) for i in (1, 2, 3)
    ]
    return [base, *siblings]


def _row(run: BenchRun, method: Method, base: Path, models: list[Path], place: Path) -> Row:
    seconds = []
    for side, devices in (("cpu", "cpu"), ("device", run.devices)):
        words = [*map(str, models), "--strategy", method.strategy, "--devices", devices, "--quiet"]
        words += ["--out", str(place / side), *(["--base", str(base)] if method.base else [])]
        for option in method.options:
            words += ["--set", option]
        done = run.emberge(f"merge-{method.strategy}-{side}", "merge", *words)
        if done.failed:
            return Row(PART, method.strategy, "failed", f"on {devices}: {done.reason}")
        seconds.append(done.seconds)
    same, note = compare(place / "cpu", place / "device", method.elementwise)
    for side in ("cpu", "device"):
        shutil.rmtree(place / side)
    times = f"{seconds[0]:.1f} s on cpu, {seconds[1]:.1f} s on {run.devices}"
    return Row(PART, method.strategy, "passed" if same else "failed", f"{note}; {times}")


def compare(ours: Path, other: Path, elementwise: bool) -> tuple[bool, str]:
    """Return whether two merged folders agree as they must, and how far they do, in words."""
    import torch
    from safetensors.torch import load_file

    first, second = (load_file(folder / "model.safetensors") for folder in (ours, other))
    if first.keys() != second.keys():
        return False, "other tensors"
    if all(torch.equal(first[name], second[name]) for name in first):
        return True, "the same bytes"
    values = others = 0
    worst = 0.0
    for name, tensor in first.items():
        a, b = tensor.double(), second[name].double()
        off = (a - b).abs() / a.abs().max().clamp(min=1e-30)
        values += off.numel()
        if not torch.equal(a.isnan(), b.isnan()):
            return False, f"NaN in {name} of one alone"
        others += int((off > NEAR).sum())
        worst = max(worst, float(off.nan_to_num(0.0).max()))
    note = f"at most {worst:.1e} of the largest, {others} of {values} values off by over {NEAR:g}"
    return not elementwise and others <= OTHERS * values, note

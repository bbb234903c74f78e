"""What must be the same for a training to be continued, and what the machine chose once for it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from emberge.contracts.dataset import Dataset
from emberge.devices import dtype_for
from emberge.errors import EmbergeError
from emberge.training.encode import default_token_budget
from emberge.training.options import FitOptions
from emberge.training.plan import BatchPlan
from emberge.training.saves import State

__all__ = ["Engine", "identity_of", "refuse_other", "settle_budget", "settle_engine"]


@dataclass(frozen=True)
class Engine:
    """What the machine decides once: chosen at the first start, kept for every later one.

    The token budget is `fitted` when it was asked for by name or memory was looked at.
    """

    threads: int
    token_budget: int
    precision: str
    fitted: bool = True


def settle_engine(work: Path, device: str, options: FitOptions, beside: int = 1) -> Engine:
    """What an earlier start chose, or what this one chooses and writes down.

    `beside` ranks share the machine's cores.
    """
    path = work / "engine.json"
    if path.is_file():
        return Engine(**json.loads(path.read_text(encoding="utf-8")))
    precision = options.precision
    resolved = dtype_for(device) if precision == "auto" else precision
    budget = options.token_budget or default_token_budget(device, training=True)
    asked = options.token_budget is not None
    engine = Engine(max(1, torch.get_num_threads() // beside), budget, resolved, fitted=asked)
    work.mkdir(parents=True, exist_ok=True)
    return _written(work, engine)


def settle_budget(work: Path, engine: Engine, fit: Callable[[int], int]) -> Engine:
    """The engine with the budget that `fit` makes of its own, written down; one that is settled stays.

    No state is saved before, so a kill on the way here changes nothing.
    """
    if engine.fitted:
        return engine
    return _written(work, replace(engine, token_budget=fit(engine.token_budget), fitted=True))


def _written(work: Path, engine: Engine) -> Engine:
    path = work / "engine.json"
    side = path.with_name(".engine.json.part")
    side.write_text(json.dumps(asdict(engine)), encoding="utf-8")
    os.replace(side, path)
    return engine


def identity_of(
    plan: BatchPlan,
    datasets: Sequence[Dataset],
    options: FitOptions,
    checkpoint: Path,
    code: Mapping[str, Any],
) -> dict[str, Any]:
    """What must be the same for a saved state to be continued.

    `code` are components by what they are for; each counts by its name and options.
    """
    weights = hashlib.sha256()
    for path in sorted([*checkpoint.glob("*.safetensors"), *checkpoint.glob("*/*.safetensors")]):
        with path.open("rb") as file:
            weights.update(hashlib.file_digest(file, "sha256").digest())
    # What changes speed or what is kept beside the model is no part of it.
    free = {"save_steps", "keep_last", "logging_steps", "token_budget", "kept_tokens"}
    asked = {k: v for k, v in asdict(options).items() if k not in free}
    return {
        "plan": plan.fingerprint,
        "data": {dataset.info.name: dataset.fingerprint for dataset in datasets},
        "checkpoint": weights.hexdigest(),
        "options": json.loads(json.dumps(asked, default=str)),
        "code": {name: repr(part) for name, part in code.items()},
    }


def refuse_other(state: State, identity: Mapping[str, Any], states: Path) -> None:
    """Refuse to continue what another training began, with the reason."""
    known = state.facts["identity"]
    for part in ("checkpoint", "data", "options", "code", "plan"):
        if known[part] == identity[part]:
            continue
        what = {
            "checkpoint": "the weights it starts from",
            "data": "the data",
            "options": "the options",
            "code": "the options of components",
            "plan": "the batches (sampler, seed or number of rows)",
        }[part]
        if part in ("data", "options", "code"):
            old, new = known[part], identity[part]
            names = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
            what += f" ({', '.join(names)})"
        raise EmbergeError(
            f"{states}: a training was begun here and {what} have changed since; "
            "delete the folder to start over, or undo the change to continue"
        )

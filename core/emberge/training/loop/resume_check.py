"""Check that a saved state belongs to the training that would continue it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from emberge.contracts import Dataset
from emberge.errors import EmbergeError
from emberge.training.fit_job import FitJob
from emberge.training.loop.checkpoints import TrainingState


def identify_job(job: FitJob, datasets: Sequence[Dataset], plan: str) -> dict[str, Any]:
    """Return what must be the same for a saved state to be continued: part by part, as JSON values.

    `datasets` are those that rows are taken of, `plan` is the fingerprint of their batches.
    """
    weights = hashlib.sha256()
    folder = job.checkpoint
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")]):
        with path.open("rb") as file:
            weights.update(hashlib.file_digest(file, "sha256").digest())
    # What changes speed or what is kept beside the model is no part of it.
    free = {"save_steps", "keep_last", "logging_steps", "token_budget", "kept_tokens"}
    options = {k: v for k, v in asdict(job.options).items() if k not in free}
    infos = [dataset.info for dataset in datasets]
    code = {
        "backbone": job.backbone,
        **{f"loss of {info.name}": job.losses.of(info.name, info.task) for info in infos},
        **({"evaluate": job.early_stopping} if job.early_stopping else {}),
    }
    return {
        "plan": plan,
        "data": {dataset.info.name: dataset.fingerprint for dataset in datasets},
        "checkpoint": weights.hexdigest(),
        "options": json.loads(json.dumps(options, default=str)),
        "code": {name: repr(part) for name, part in code.items()},
    }


def refuse_other(state: TrainingState, identity: Mapping[str, Any], states: Path) -> None:
    """Refuse to continue what another training began, with the reason."""
    known = state.facts["identity"]
    for part in ("checkpoint", "data", "options", "code", "plan"):
        if known.get(part) == identity.get(part):
            continue
        what = {
            "checkpoint": "the weights it starts from",
            "data": "the data",
            "options": "the options",
            "code": "the options of components",
            "plan": "the batches (sampler, seed or number of rows)",
        }[part]
        if part in ("data", "options", "code"):
            old, new = known.get(part, {}), identity.get(part, {})
            names = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
            what += f" ({', '.join(names)})"
        raise EmbergeError(
            f"{states}: a training was begun here and {what} have changed since; "
            "delete the folder to start over, or undo the change to continue"
        )

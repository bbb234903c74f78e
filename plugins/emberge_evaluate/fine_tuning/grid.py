"""Fine-tunings of one model over tasks, seeds and learning rates; finished ones are stored."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from emberge import CheckpointError, Model, TaskInfo, TaskScore, Workspace
from emberge.contracts import TokenEncoder
from emberge.evaluating import safe_file_name
from emberge.files import replace_file, write_text

from emberge_evaluate.fine_tuning.kinds import Reading, kind_of
from emberge_evaluate.fine_tuning.metrics import score, units_of
from emberge_evaluate.fine_tuning.task_data import TaskData
from emberge_evaluate.fine_tuning.tuning import Tuned, Tuning, TuningSchedule
from emberge_evaluate.fine_tuning.tuning_options import TuningOptions

_LOOKS = 20  # looks at development data in a training


class Grid:
    """Fine-tunings of a model; a cell is one task, seed and learning rate.

    Finished cells are stored in OUT by the model's content and every option that changes their result. So a
    killed evaluation resumes where it stopped, and a longer list of learning rates only adds cells.
    """

    def __init__(
        self,
        options: TuningOptions,
        model: Model,
        data: Mapping[str, TaskData],
        workspace: Workspace,
    ) -> None:
        self.options, self.model, self.data, self.workspace = options, model, data, workspace
        self._rates = options.learning_rate[:1] if workspace.rehearsal else options.learning_rate
        self._origins = {task_data.entry.start for task_data in data.values()}
        self._expected: set[tuple[str, int]] = set()
        self._done: dict[tuple[str, int, float], Tuned] = {}

    def expect(self, cells: Iterable[tuple[str, int]]) -> None:
        """Register the tasks and seeds that will be scored, for the progress."""
        for name, seed in cells:
            self._expected.add((name, seed))
            start = self.data[name].entry.start
            if start is not None:
                self.expect([(start, seed)])

    def score(self, task: TaskInfo, seed: int) -> TaskScore:
        """Return the score of the learning rate that was best on development data."""
        name = task.name_without_seed
        data, entry = self.data[name], self.data[name].entry
        rate, tuned = self._choose_rate(name, seed)
        metric = entry.scored_by
        predictions = [tuned.predictions[test] for test in data.test]
        scores = {
            test: score(metric, data.classes, rows, predicted)
            for (test, rows), predicted in zip(data.test.items(), predictions, strict=True)
        }
        result = {
            "learning_rate": rate,
            "seed": seed,
            "step": tuned.step,
            "dev": tuned.dev,
            "test": scores,
            "dev_by_learning_rate": {
                f"{r:g}": done.dev
                for r in self._rates
                if not (done := self._done[name, seed, r]).diverged
            },
            "curve": [list(point) for point in tuned.curve],
        }
        units = units_of(metric, data.classes, list(data.test.values()), predictions)
        return TaskScore(task, sum(scores.values()) / len(scores), units, result)

    def _choose_rate(self, name: str, seed: int) -> tuple[float, Tuned]:
        """Return (best learning rate on development data, its result); the first of equal rates wins.

        Raises:
            CheckpointError: where the loss of every learning rate's training was not finite.
        """
        for rate in self._rates:
            self._require_cell(name, seed, rate)
        done = {rate: self._done[name, seed, rate] for rate in self._rates}
        lost = {f"{rate:g}": tuned.diverged for rate, tuned in done.items() if tuned.diverged}
        sound = {rate: tuned for rate, tuned in done.items() if not tuned.diverged}
        if lost:
            steps = ", ".join(f"step {step} at learning_rate {rate}" for rate, step in lost.items())
            fault = (
                f"{self.model.name} on task '{name}', seed {seed}: the loss is not finite ({steps})"
            )
            if not sound:
                raise CheckpointError(f"{fault}; lower learning_rate")
            self.workspace.warn(f"{fault}; these are not among those to choose from")
        rate = max(sound, key=lambda rate: sound[rate].dev)
        return rate, sound[rate]

    def _require_cell(self, name: str, seed: int, rate: float) -> None:
        """Train a cell unless the store has its result."""
        if (name, seed, rate) not in self._done:
            path = self._locate_result(name, seed, rate)
            tuned = _read_tuned(path) or self._run_cell(name, seed, rate)
            self._done[name, seed, rate] = tuned
            if not path.exists():
                _write_tuned(path, tuned)
        self._report_progress()

    def _run_cell(self, name: str, seed: int, rate: float) -> Tuned:
        encoder = self._load_encoder(name, seed)
        kind = kind_of(self.data[name], self._build_reading())
        words = f"{name}, seed {seed}, learning rate {rate:g}"
        tuning = Tuning(
            encoder,
            kind,
            self._build_schedule(name, seed, rate),
            lambda step: self._report_progress(step, words),
        )
        work = self._locate_weights(name, seed, rate).with_suffix("")
        tuned = tuning.run(work)
        shutil.rmtree(work, ignore_errors=True)
        if name in self._origins and not tuned.diverged:
            self._save_weights(encoder, self._locate_weights(name, seed, rate))
        return tuned

    def _load_encoder(self, name: str, seed: int) -> TokenEncoder:
        """Return the model's encoder, with the weights of the task that this task starts from, if any."""
        encoder = self.options.backbone.load(
            self.model.folder, device=self.workspace.machine.device, dtype="float32"
        )
        if not isinstance(encoder, TokenEncoder):
            raise CheckpointError(
                f"{self.model.name}: {type(encoder).__name__} does not know where tokens are in their texts "
                "(TokenEncoder); choose a backbone that does"
            )
        start = self.data[name].entry.start
        if start is not None:
            self._restore_weights(encoder, start, seed)
        return encoder

    def _restore_weights(self, encoder: TokenEncoder, start: str, seed: int) -> None:
        """Load the weights of another task into an encoder, repeating that task if they are missing."""
        from safetensors.torch import load_file

        rate, _ = self._choose_rate(start, seed)
        path = self._locate_weights(start, seed, rate)
        if not path.exists():
            self._run_cell(start, seed, rate)
        for other in self._rates:
            if other != rate:
                self._locate_weights(start, seed, other).unlink(missing_ok=True)
        weights = dict(encoder.module.named_parameters())
        with torch.no_grad():
            for stored, value in load_file(path).items():
                weights[stored].copy_(value)

    def _save_weights(self, encoder: TokenEncoder, path: Path) -> None:
        from safetensors.torch import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        weights = {
            name: p.detach().cpu().contiguous()
            for name, p in encoder.module.named_parameters()
            if p.requires_grad
        }
        with replace_file(path) as part:
            save_file(weights, part)

    def _build_reading(self) -> Reading:
        options, pooling = self.options, self.options.pooling
        if pooling == "auto":
            pooling = "last" if options.backbone.describe(self.model.folder).causal else "mean"
        return Reading(
            prompt=options.prompt,
            max_length=options.max_length,
            pooling=pooling,
            previous=options.align == "previous",
            dropout=options.dropout,
        )

    def _build_schedule(self, name: str, seed: int, rate: float) -> TuningSchedule:
        options, steps = self.options, self._count_steps(name)
        return TuningSchedule(
            steps=steps,
            batch_size=options.batch_size,
            learning_rate=rate,
            warmup=options.warmup,
            weight_decay=options.weight_decay,
            eval_steps=min(steps, options.eval_steps or max(1, steps // _LOOKS)),
            patience=options.patience,
            seed=seed,
            autocast=None if options.precision == "float32" else torch.bfloat16,
        )

    def _count_steps(self, name: str) -> int:
        rehearsal = self.workspace.rehearsal
        return rehearsal.steps if rehearsal else self.data[name].entry.steps or self.options.steps

    def _locate_result(self, name: str, seed: int, rate: float) -> Path:
        folder = self.workspace.store / "fine_tuned" / safe_file_name(self.model.fingerprint)
        return folder / f"{safe_file_name(name)}-{self._hash_cell(name, seed, rate)}.json"

    def _locate_weights(self, name: str, seed: int, rate: float) -> Path:
        return (
            self.workspace.work / "fine_tuned" / f"{self._hash_cell(name, seed, rate)}.safetensors"
        )

    def _hash_cell(self, name: str, seed: int, rate: float) -> str:
        start = self.data[name].entry.start
        options = dataclasses.replace(self.options, seeds=(), learning_rate=())
        parts = (
            self.data[name].key,
            None if start is None else (self.data[start].key, self._rates),
            (options, seed, rate, self.workspace.rehearsal, self.model.fingerprint),
            version("emberge"),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def _report_progress(self, step: int = 0, words: str = "") -> None:
        """Report the finished steps of all cells; a training that ended early counts in full."""
        done = sum(self._count_steps(name) for name, _, _ in self._done)
        total = sum(self._count_steps(name) * len(self._rates) for name, _ in self._expected)
        self.workspace.progress(min(done + step, total), total, "steps", words)


def _read_tuned(path: Path) -> Tuned | None:
    """Return a cell's stored result; None without one, or for a damaged one."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        curve = [(int(at), float(loss), float(dev)) for at, loss, dev in stored["curve"]]
        results = float(stored["dev"]), int(stored["step"]), curve, dict(stored["predictions"])
        return Tuned(*results, diverged=stored["diverged"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_tuned(path: Path, tuned: Tuned) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(dataclasses.asdict(tuned)), shared=True)

"""Fine-tunings of one model over tasks, seeds and learning rates; finished ones are stored."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
from emberge_evaluate.fine_tuning.tuning_options import TuningLength, TuningOptions


@dataclass(frozen=True)
class Setting:
    """Options of a fine-tuning that development data choose."""

    learning_rate: float
    batch_size: int

    def __str__(self) -> str:
        return f"learning rate {self.learning_rate:g}, batch size {self.batch_size}"


class Grid:
    """Fine-tunings of a model; a cell is one task, seed, learning rate and batch size.

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
        self._settings = [
            Setting(rate, size) for rate in options.learning_rate for size in options.batch_size
        ]
        self._origins = {task_data.entry.start for task_data in data.values()}
        self._expected: set[tuple[str, int]] = set()
        self._done: dict[tuple[str, int, Setting], Tuned] = {}

    def expect(self, cells: Iterable[tuple[str, int]]) -> None:
        """Register the tasks and seeds that will be scored, for the progress."""
        for name, seed in cells:
            self._expected.add((name, seed))
            start = self.data[name].entry.start
            if start is not None:
                self.expect([(start, seed)])

    def score(self, task: TaskInfo, name: str, seed: int, test: str | None) -> TaskScore:
        """Return the score of the setting that was best on development data.

        `task` is a column of the task `name`: the test set `test`, or the mean over all of them.
        """
        data, metric = self.data[name], self.data[name].entry.scored_by
        setting, tuned = self._choose_setting(name, seed)
        scores = {
            test_name: score(metric, data.classes, rows, tuned.predictions[test_name])
            for test_name, rows in data.test.items()
        }
        result = {
            "learning_rate": setting.learning_rate,
            "batch_size": setting.batch_size,
            "seed": seed,
            "step": tuned.step,
            "dev": tuned.dev,
            "test": scores,
            "dev_by_setting": [
                {**dataclasses.asdict(other), "dev": done.dev}
                for other in self._settings
                if not (done := self._done[name, seed, other]).diverged
            ],
            "curve": [list(point) for point in tuned.curve],
        }
        tests = list(data.test) if test is None else [test]
        if tuned.test_curve:
            result["test_curve"] = [
                [step, sum(by_test[each] for each in tests) / len(tests)]
                for step, by_test in tuned.test_curve
            ]
        units = units_of(
            metric,
            data.classes,
            [data.test[each] for each in tests],
            [tuned.predictions[each] for each in tests],
        )
        return TaskScore(task, sum(scores[each] for each in tests) / len(tests), units, result)

    def _choose_setting(self, name: str, seed: int) -> tuple[Setting, Tuned]:
        """Return (best setting on development data, its result); the first of equal ones wins.

        Raises:
            CheckpointError: where the loss of every setting's training was not finite.
        """
        for setting in self._settings:
            self._require_cell(name, seed, setting)
        done = {setting: self._done[name, seed, setting] for setting in self._settings}
        lost = {setting: tuned.diverged for setting, tuned in done.items() if tuned.diverged}
        sound = {setting: tuned for setting, tuned in done.items() if not tuned.diverged}
        if lost:
            steps = ", ".join(f"step {step} at {setting}" for setting, step in lost.items())
            fault = (
                f"{self.model.name} on task '{name}', seed {seed}: the loss is not finite ({steps})"
            )
            if not sound:
                raise CheckpointError(f"{fault}; lower learning_rate")
            self.workspace.warn(f"{fault}; these are not among those to choose from")
        best = max(sound, key=lambda setting: sound[setting].dev)
        return best, sound[best]

    def _require_cell(self, name: str, seed: int, setting: Setting) -> None:
        """Train a cell unless the store has its result."""
        if (name, seed, setting) not in self._done:
            path = self._locate_result(name, seed, setting)
            tuned = _read_tuned(path) or self._run_cell(name, seed, setting)
            self._done[name, seed, setting] = tuned
            if not path.exists():
                _write_tuned(path, tuned)
        self._report_progress()

    def _run_cell(self, name: str, seed: int, setting: Setting) -> Tuned:
        encoder = self._load_encoder(name, seed)
        kind = kind_of(self.data[name], self._build_reading())
        words = f"{name}, seed {seed}, {setting}"
        expected = self._count_steps(name, setting)

        def report(step: int) -> None:
            # Training inputs may be more or fewer than rows, which the total is counted from.
            self._report_progress(round(expected * step / tuning.steps), words)

        tuning = Tuning(encoder, kind, self._build_schedule(name, seed, setting), report)
        work = self._locate_weights(name, seed, setting).with_suffix("")
        tuned = tuning.run(work)
        shutil.rmtree(work, ignore_errors=True)
        if name in self._origins and not tuned.diverged:
            self._save_weights(encoder, self._locate_weights(name, seed, setting))
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

        best, _ = self._choose_setting(start, seed)
        path = self._locate_weights(start, seed, best)
        if not path.exists():
            self._run_cell(start, seed, best)
        for other in self._settings:
            if other != best:
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

    def _build_schedule(self, name: str, seed: int, setting: Setting) -> TuningSchedule:
        options = self.options
        return TuningSchedule(
            length=self._choose_length(name),
            batch_size=setting.batch_size,
            learning_rate=setting.learning_rate,
            warmup=options.warmup,
            weight_decay=options.weight_decay,
            eval_steps=options.eval_steps,
            patience=options.patience,
            seed=seed,
            test_curves=options.test_curves,
            autocast=None if options.precision == "float32" else torch.bfloat16,
        )

    def _choose_length(self, name: str) -> TuningLength:
        return self.options.length(self.data[name].entry)

    def _count_steps(self, name: str, setting: Setting) -> int:
        rows = len(self.data[name].train)
        return self._choose_length(name).count_steps(rows, setting.batch_size)

    def _locate_result(self, name: str, seed: int, setting: Setting) -> Path:
        folder = self.workspace.store / "fine_tuned" / safe_file_name(self.model.fingerprint)
        return folder / f"{safe_file_name(name)}-{self._hash_cell(name, seed, setting)}.json"

    def _locate_weights(self, name: str, seed: int, setting: Setting) -> Path:
        file = f"{self._hash_cell(name, seed, setting)}.safetensors"
        return self.workspace.work / "fine_tuned" / file

    def _hash_cell(self, name: str, seed: int, setting: Setting) -> str:
        start = self.data[name].entry.start
        options = dataclasses.replace(self.options, seeds=(), learning_rate=(), batch_size=())
        parts = (
            self.data[name].key,
            None if start is None else (self.data[start].key, self._settings),
            (options, seed, setting, self.model.fingerprint),
            version("emberge"),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def _report_progress(self, step: int = 0, words: str = "") -> None:
        """Report the finished steps of all cells; a training that ended early counts in full."""
        done = sum(self._count_steps(name, setting) for name, _, setting in self._done)
        total = sum(
            self._count_steps(name, setting)
            for name, _ in self._expected
            for setting in self._settings
        )
        self.workspace.progress(min(done + step, total), total, "steps", words)


def _read_tuned(path: Path) -> Tuned | None:
    """Return a cell's stored result; None without one, or for a damaged one."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        curve = [(int(at), float(loss), float(dev)) for at, loss, dev in stored["curve"]]
        results = float(stored["dev"]), int(stored["step"]), curve, dict(stored["predictions"])
        test_curve = [(int(step), dict(by_test)) for step, by_test in stored["test_curve"]]
        return Tuned(*results, diverged=stored["diverged"], test_curve=test_curve)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_tuned(path: Path, tuned: Tuned) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(dataclasses.asdict(tuned)), shared=True)

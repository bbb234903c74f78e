"""Fine-tunings of one model over tasks, seeds and settings; finished ones are stored."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from emberge import CheckpointError, Encoder, Model, TaskInfo, TaskScore, Workspace
from emberge.files import replace_file, write_text
from emberge.wording import make_file_name
from emberge_encoder import LocatingEncoder

from emberge_fine_tuned.head_tasks import HEAD_TASKS
from emberge_fine_tuned.metrics import build_units, compute_score
from emberge_fine_tuned.options import Setting, TuningOptions
from emberge_fine_tuned.task_data import TaskData
from emberge_fine_tuned.tuning import Tuning, TuningResult


class Cell(NamedTuple):
    """One fine-tuning of the model: on a task, by its name, with a seed and a setting."""

    name: str
    seed: int
    setting: Setting


class Grid:
    """Fine-tunings of a model.

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
        self.options = options
        self.model = model
        self.data = data
        self.workspace = workspace
        self._origins = {task_data.entry.start for task_data in data.values()}
        self._done: dict[Cell, TuningResult] = {}

    def score(self, task: TaskInfo, name: str, seed: int, test: str | None) -> TaskScore:
        """Return the score of the setting that was best on development data.

        `task` is a column of the task `name`: the test set `test`, or the mean over all of them.
        """
        data = self.data[name]
        setting, tuned = self._choose_setting(name, seed)
        scores = {
            n: compute_score(data, rows, tuned.predictions[n]) for n, rows in data.test.items()
        }
        result = {
            **dataclasses.asdict(setting),
            "seed": seed,
            "step": tuned.step,
            "dev": tuned.dev,
            "test": scores,
            "dev_by_setting": [
                {**dataclasses.asdict(other), "dev": done.dev}
                for other in self.options.settings
                if not (done := self._done[Cell(name, seed, other)]).diverged
            ],
            "curve": [list(point) for point in tuned.curve],
        }
        tests = list(data.test) if test is None else [test]
        predictions = [tuned.predictions[each] for each in tests]
        units = build_units(data, [data.test[each] for each in tests], predictions)
        return TaskScore(task, sum(scores[each] for each in tests) / len(tests), units, result)

    def _choose_setting(self, name: str, seed: int) -> tuple[Setting, TuningResult]:
        """Return (best setting on development data, its result); the first of equal ones wins.

        Raises:
            CheckpointError: where the loss of every setting's training was not finite.
        """
        settings = self.options.settings
        done = {}
        for number, setting in enumerate(settings, 1):
            words = f"{name}, seed {seed}, {setting}"
            with self.workspace.part("setting", number, len(settings), words):
                done[setting] = self._get_result(Cell(name, seed, setting))
        lost = {setting: tuned.diverged for setting, tuned in done.items() if tuned.diverged}
        sound = {setting: tuned for setting, tuned in done.items() if not tuned.diverged}
        if lost:
            steps = ", ".join(f"step {step} at {setting}" for setting, step in lost.items())
            problem = (
                f"{self.model.name} on '{name}', seed {seed}: the loss is not finite ({steps})"
            )
            if not sound:
                raise CheckpointError(f"{problem}; lower learning_rate")
            self.workspace.warn(f"{problem}; these settings are left out of the choice")
        best = max(sound, key=lambda setting: sound[setting].dev)
        return best, sound[best]

    def _get_result(self, cell: Cell) -> TuningResult:
        """Return the result of a cell, which is trained unless the store has it."""
        if cell not in self._done:
            folder = self.workspace.store / "fine_tuned" / make_file_name(self.model.fingerprint)
            path = folder / f"{make_file_name(cell.name)}-{self._hash_cell(cell)}.json"
            tuned = _read_tuned(path)
            if tuned is None:
                tuned = self._run(cell)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, json.dumps(dataclasses.asdict(tuned)))
            self._done[cell] = tuned
        return self._done[cell]

    def _run(self, cell: Cell) -> TuningResult:
        data, options, folder = self.data[cell.name], self.options, self.model.folder
        encoder = options.backbone.load(
            folder, device=self.workspace.machine.device, dtype="float32"
        )
        if not isinstance(encoder, LocatingEncoder):
            raise CheckpointError(
                f"{self.model.name}: {type(encoder).__name__} does not know where tokens are in their texts; "
                "choose a backbone that does, such as text_encoder"
            )
        if data.entry.start is not None:
            self._restore_weights(encoder, data.entry.start, cell.seed)
        head_task = HEAD_TASKS[data.entry.head](
            data,
            encoder,
            causal=bool(options.backbone.describe(folder).causal),
            max_length=options.max_length,
        )
        tuning = Tuning(head_task, options, cell.setting, cell.seed, self.workspace.progress)
        weights = self._locate_weights(cell)
        tuned = tuning.run(weights.with_suffix(""))
        shutil.rmtree(weights.with_suffix(""), ignore_errors=True)
        if cell.name in self._origins and not tuned.diverged:
            _save_weights(encoder, weights)
        return tuned

    def _restore_weights(self, encoder: Encoder, start: str, seed: int) -> None:
        """Load the weights of another task into an encoder, repeating that task if they are missing.

        The weights of the other task's unused settings are removed.
        """
        from safetensors.torch import load_file

        best = Cell(start, seed, self._choose_setting(start, seed)[0])
        path = self._locate_weights(best)
        if not path.exists():
            self._run(best)
        for other in self.options.settings:
            if other != best.setting:  # no task starts from their weights
                self._locate_weights(best._replace(setting=other)).unlink(missing_ok=True)
        weights = dict(encoder.module.named_parameters())
        with torch.no_grad():
            for stored, value in load_file(path).items():
                weights[stored].copy_(value)

    def _locate_weights(self, cell: Cell) -> Path:
        return self.workspace.work / "fine_tuned" / f"{self._hash_cell(cell)}.safetensors"

    def _hash_cell(self, cell: Cell) -> str:
        start = self.data[cell.name].entry.start
        left_out = ("tasks", "data", "seeds", "learning_rate", "batch_size")
        options = {
            name: value for name, value in vars(self.options).items() if name not in left_out
        }
        origin = None if start is None else (self.data[start].key, self.options.settings)
        parts = (self.data[cell.name].key, origin, options, cell, self.model.fingerprint)
        return hashlib.sha256(repr((*parts, version("emberge"))).encode()).hexdigest()[:32]


def _save_weights(encoder: Encoder, path: Path) -> None:
    from safetensors.torch import save_file

    trained = {n: p for n, p in encoder.module.named_parameters() if p.requires_grad}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as part:
        save_file({n: p.detach().cpu().contiguous() for n, p in trained.items()}, part)


def _read_tuned(path: Path) -> TuningResult | None:
    """Return a cell's stored result; None without one, or for a damaged one."""
    try:
        return TuningResult(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None

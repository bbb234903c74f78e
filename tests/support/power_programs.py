"""A merge, a training and a run of a recipe that write to one disk, for tests of power cuts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import emberge.merging.streaming.stream as journal
import torch
from emberge import (
    Artifact,
    Backbone,
    Machine,
    ModelRef,
    PerDataset,
    Plugins,
    Step,
    Workspace,
    hookimpl,
    run_recipe,
)
from emberge.merging import MergeInput
from emberge.recipes import Recipe
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.run.run_log import JsonLineFile
from emberge.training import EarlyStopping, FitOptions
from emberge_merge import Linear
from emberge_train import BatchShuffle, InfoNCE
from safetensors.torch import save_file

from tests.support import tiny
from tests.support.disk_recorder import DiskRecorder
from tests.support.fitting import run_fit
from tests.support.merges import merge_models
from tests.support.training_data import retrieval

SCORES = {2: 1.0, 4: 2.0, 6: 0.0}


def write_models(root: Path) -> Path:
    """Write two tiny models with weights in a module's folder too; return the folder of both."""
    for i in (0, 1):
        folder = tiny.checkpoint(root / f"m{i}", "qwen3", seed=i, num_hidden_layers=1)
        modules = json.loads((folder / "modules.json").read_text())
        modules.append(
            {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
        )
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "3_Dense").mkdir()
        facts = {"in_features": 32, "out_features": 8, "bias": False}
        (folder / "3_Dense" / "config.json").write_text(json.dumps(facts))
        weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(i))
        save_file({"linear.weight": weight}, folder / "3_Dense" / "model.safetensors")
    return root


def merge(models: Path, disk: Path) -> int:
    """Merge into `out`, in three files and one more; the number of tensors that were computed."""
    # A clock by which every third tensor or so is time to sync: names wait, and others are done.
    journal.time = SimpleNamespace(monotonic=itertools.count().__next__)  # type: ignore[assignment]
    computed = []
    merge_models(
        [MergeInput(path.name, path) for path in sorted(models.iterdir())],
        strategy=[Linear()],
        out=disk / "out",
        max_shard_size="24KB",
        machine=Machine(workers=1),
        progress=lambda _done, _total, name: computed.append(name),
    )
    return len(computed)


def train(
    backbone: Backbone, checkpoint: Path, disk: Path, recorder: DiskRecorder | None = None
) -> None:
    """Train six steps with three states, two kept models, and the best of three scored."""
    numbers: list[JsonLineFile] = []

    def metric(name: str, value: float, at: int) -> None:
        if not numbers:  # the work folder is made by the training
            numbers.append(JsonLineFile(disk / "work" / "numbers.jsonl"))
        numbers[0].append({"name": name, "at": at, "words": "so that lines cross sectors"})

    def progress(done: float, *_: object) -> None:
        if recorder is not None:
            recorder.announce(str(done))

    run_fit(
        backbone=backbone,
        checkpoint=checkpoint,
        datasets=[retrieval(12)],
        sampler=(BatchShuffle(batch_size=PerDataset(default=4)),),
        losses=PerDataset(default=(InfoNCE(temperature=0.1),)),
        options=FitOptions(
            epochs=2,
            learning_rate=1e-3,
            token_budget=80,
            kept_tokens=80,
            save_steps=2,
            keep_last=2,
        ),
        folder=disk / "out",
        work=disk / "work",
        seed=0,
        device="cpu",
        store=disk / "store",
        progress=progress,
        metric=metric,
        early_stopping=EarlyStopping(2, lambda _, step: SCORES[step], "scores"),
    )
    for file in numbers:
        file.close()


@dataclass(frozen=True, kw_only=True)
class Write(Step):
    """Write a model folder of words and of the models it is given, log numbers and warn."""

    produces = "model"
    word: str
    of: tuple[ModelRef, ...] = ()

    def run(self, workspace: Workspace) -> Artifact:
        for tick in range(12):
            workspace.progress(tick, 12, "tick")
            workspace.metric("loss", 1 / (tick + 1), tick)
        workspace.warn(f"{self.word} is odd")
        given = [workspace.model(reference).folder / "config.json" for reference in self.of]
        text = self.word + "".join(path.read_text() for path in given)
        (workspace.folder / "config.json").write_text(json.dumps({"text": text, "long": "x" * 900}))
        (workspace.folder / "2_Dense").mkdir(exist_ok=True)
        (workspace.folder / "2_Dense" / "config.json").write_text("{}")
        return Artifact("model", size=12)


class Registered:
    """The plugin of the step; it announces what the run does."""

    def __init__(self, announce: Callable[[str], None] = lambda _: None) -> None:
        self.announce = announce

    @hookimpl
    def register_steps(self) -> Mapping[str, type[Step]]:
        return {"write": Write}

    @hookimpl
    def step_finished(self, step: str) -> None:
        self.announce(step)


def recipe(last: str = "B") -> Recipe:
    """A model `a`, and `b` which is made of it and of the word `last`."""
    steps = {"a": Write(word="A"), "b": Write(word=last, of=(ModelRef("$a"),))}
    made = tuple(
        RecipeStep(name, name, "toy:write", step, f"toy.yaml:{name}", {})
        for name, step in steps.items()
    )
    return Recipe(0, made, Path("toy.yaml"), f"a: A\nb: {last}\n")


def run(disk: Path, last: str = "B", announce: Callable[[str], None] = lambda _: None) -> None:
    plugins = Plugins()
    plugins.register(Registered(announce), "toy")
    run_recipe(recipe(last), disk / "out", plugins, machine=Machine(workers=1), quiet=True)

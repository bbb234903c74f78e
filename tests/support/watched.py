"""A workspace that watches a checkpoint being built, and claims about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from emberge import Artifact, Model, ModelRef, Step
from safetensors import safe_open

from tests.support.bench import Bench

SIZE = 1234


@dataclass
class Watched(Bench):
    """A bench that notes the names in its work folder at each report of progress."""

    at_work: set[str] = field(default_factory=set)

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        super().progress(done, total, unit, note)
        self.at_work |= {path.name for path in self.work.iterdir()}


def assert_built_as_promised(step: Step, root: Path, folder: Path, name: str) -> Artifact:
    """Run a step on the model in `folder`; return its artifact.

    It works in the folder `result` of its work, reports every tensor's bytes under its name, writes the
    provenance of the step `name` into the headers, and hands on how many examples the model was trained with.
    """
    seed = getattr(step, "seed", None) or 0  # as the runner gives it
    watched = Watched(root, seed=seed, provenance={"step": name, "fingerprint": "of the run"})
    trained = Artifact("model", size=SIZE)
    watched.many[str(folder)] = [Model("the model", folder, "its content", trained)]
    artifact = step.run(watched)
    with safe_open(watched.folder / "model.safetensors", "pt") as file:
        names, header = set(file.keys()), json.loads(file.metadata()["emberge"])
    assert header["step"] == name
    assert "result" in watched.at_work
    assert {unit for _, _, unit, _ in watched.told} == {"bytes"}
    assert {note for _, _, _, note in watched.told} - {""} <= names
    assert watched.told[-1][0] == watched.told[-1][1] > 0
    assert watched.told[-1][3] in names
    assert (artifact.kind, artifact.size) == ("model", SIZE)
    assert ModelRef(str(folder)).text in artifact.parents
    return artifact

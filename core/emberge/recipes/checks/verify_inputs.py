"""Whether what a result was made of is still what it was, as far as it can be reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.contracts.reference import DataRef, ModelRef
from emberge.data.entry import DataEntry
from emberge.errors import CheckpointError, EmbergeError
from emberge.files.hashes import HashCache
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.model_files import model_fingerprint
from emberge.plugins import Plugins
from emberge.recipes.checks.verify import Finding, read_record
from emberge.recipes.folder.locate import (
    LocatedModel,
    kept_checkpoints,
    locate_adapter,
    locate_model,
)
from emberge.recipes.folder.results import Results
from emberge.recipes.folder.run_folder import OutFolder

__all__ = ["verify_inputs"]


def verify_inputs(folder: Path, plugins: Plugins, beside: Path) -> Iterator[Finding]:
    """Hold each input of the result in `folder` against the hash that its artifact.json has of it.

    Relative paths of its recipe are taken to be relative to `beside`; a step's result is looked for in the
    OUT that `folder` lies in. Nothing is downloaded but the configs of models on a hub.

    Raises:
        CheckpointError: when artifact.json is damaged.
    """
    record = read_record(folder)
    inputs = record.get("inputs") if record is not None else None
    if not isinstance(inputs, list):
        yield Finding("inputs", "not seen", "nothing here says which they were")
        return
    look = _Look(folder.resolve().parent, plugins, beside)
    for one in inputs:
        if isinstance(one, Mapping) and {"reference", "name", "content"} <= one.keys():
            yield look.at(one)


class _Look:
    """Where inputs are looked for."""

    def __init__(self, out: Path, plugins: Plugins, beside: Path) -> None:
        self.out, self.plugins, self.beside = OutFolder(out), plugins, beside
        self.hashes = HashCache()

    def at(self, one: Mapping[str, Any]) -> Finding:
        text = str(one["reference"])
        what = f"input {text if one['name'] in text else one['name']}"
        try:
            found = self._content(one, text)
        except (EmbergeError, ConnectionError, OSError) as error:
            return Finding(what, "not seen", str(error))
        if found == one["content"]:
            return Finding(what, "holds", "as it was")
        words = (
            "is not what it was when this was made; to make the same again, get that version of it"
        )
        return Finding(what, "differs", words)

    def _content(self, one: Mapping[str, Any], text: str) -> str:
        kind = one.get("kind", "model")
        if kind == "data":
            entry = DataEntry(path=DataRef(text, self.beside), only=tuple(one.get("only", ())))
            stands = Results(self.plugins, self.hashes).stands_for(
                entry if entry.only else DataRef(text, self.beside)
            )
            return str(stands["content"])
        if kind == "step":
            record = read_record(self._result(ModelRef(text)))
            return str((record or {}).get("fingerprint"))
        return self._model(ModelRef(text, self.beside), str(one["name"]))

    def _model(self, reference: ModelRef, name: str) -> str:
        if reference.step is not None:
            folder = self._result(reference)
            if reference.part is not None:
                kept = {path.name: path for path in kept_checkpoints(folder)}
                folder = kept.get(name.rpartition("/")[2], folder / "checkpoints")
            adapter = locate_adapter(reference, self.plugins) if reference.adapter else None
            found = LocatedModel(name, folder, adapter)
        else:
            found = locate_model(reference, self.plugins, "metadata")
        checkpoint = Checkpoint(found.folder)
        if not checkpoint.has_weights or not checkpoint.specs:  # raises when a shard is missing
            raise CheckpointError("its weights are not on this machine")
        return model_fingerprint(found.folder, self.hashes, found.adapter)

    def _result(self, reference: ModelRef) -> Path:
        link = self.out.link(str(reference.step))
        if not link.is_dir():
            raise CheckpointError(f"the step's result is not beside this one, in {self.out.path}")
        return link

"""References of a recipe to the models that a config names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from emberge_mergekit.config.names import ModelName
from emberge_mergekit.config.reading import Faults


class Whereabouts:
    """Turns mergekit's names into references: `$step`, `./folder`, `owner/name@revision`, with adapters.

    mergekit takes a path for a folder if there is one from where it is run, and for a hub id if there is
    none; a recipe's folders are relative to the recipe. `steps` are ids by the names of the configs.
    """

    def __init__(self, faults: Faults, steps: Mapping[str, str]) -> None:
        self.faults = faults
        self.steps = steps
        self.beside = faults.path.parent if faults.path is not None else Path()

    def of(self, model: ModelName) -> str:
        """Return the reference; problems of the name are noted."""
        text = self._one(model.path, model.revision, model.line)
        if model.adapter is not None:
            adapter = self._one(model.adapter, model.adapter_revision, model.line)
            text = f"{text}+{adapter}"
        return text

    def _one(self, path: str, revision: str | None, line: int) -> str:
        if path in self.steps:
            self._refuse_revision(path, revision, line)
            return f"${self.steps[path]}"
        self._refuse_file(path, line)
        folder = self._folder(path, line)
        if folder is not None:
            self._refuse_revision(path, revision, line)
            return folder.replace("$", "$$")
        text = f"{path}@{revision}" if revision else path
        return text.replace("$", "$$")

    def _folder(self, path: str, line: int) -> str | None:
        """Return the folder as a recipe writes it, None for a name that must be the hub's."""
        if Path(path).is_absolute():
            return path
        here, beside = Path(path).is_dir(), (self.beside / path).is_dir()
        if here and beside and not Path(path).samefile(self.beside / path):
            self.faults.add(
                line,
                f"'{path}' is a folder beside the config and another one where the command is run; "
                "write the whole path of the one that you mean",
            )
        written = path if path.startswith(("./", "../")) or path in (".", "..") else f"./{path}"
        if beside:
            return written
        if here:
            return str(Path(path).absolute())
        return path if written == path else None

    def _refuse_file(self, path: str, line: int) -> None:
        file = self.beside / path
        if not file.is_file():
            return
        itself = self.faults.path is not None and file.samefile(self.faults.path)
        what = "is this config itself" if itself else "is a file"
        self.faults.add(line, f"'{path}' {what}; a model is a folder, or one of the hub's")

    def _refuse_revision(self, path: str, revision: str | None, line: int) -> None:
        if revision is not None:
            self.faults.add(
                line, f"'{path}' is not on the hub and has no revision '{revision}'; leave it out"
            )

"""References in a recipe to models, data, files and steps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, get_args

from emberge.wording import hide_folders

# The plus sign at which an adapter begins: it precedes a folder, a hub id or `pkg:`.
_ADAPTER_SIGN = re.compile(r"\+(?=(?:\.{1,2}|~|[\w.-]+)?/|\w+:)")
# Longest name of a part, in characters. A longer name keeps its end, where paths of models differ.
_LONGEST_TEXT = 80


ArtifactKind = Literal["model", "data", "scores", "report", "statistics", "file"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference in a recipe: to an earlier step's result (`$id`, `$id.part`), or to an outside file.

    The `text` of a reference to a step names one instance after `foreach` is expanded (`$members.ratio=0.2`).
    Relative paths in `text` start at `folder`.
    """

    text: str
    folder: Path = field(default=Path(), compare=False, repr=False)
    accepts: ClassVar[tuple[str, ...]] = ()

    @property
    def step(self) -> str | None:
        """The step's id without the part; None for an outside reference."""
        if not self.text.startswith("$"):
            return None
        return self.main[1:].removesuffix(".checkpoints")

    @property
    def part(self) -> str | None:
        """The part of a step's result, such as `checkpoints` for the models it kept in addition."""
        return "checkpoints" if self.step and self.main.endswith(".checkpoints") else None

    @property
    def main(self) -> str:
        """The text before an adapter."""
        return _ADAPTER_SIGN.split(self.text, maxsplit=1)[0]

    @property
    def adapter(self) -> str | None:
        """The text after the plus sign of `model+adapter`."""
        _, *adapter = _ADAPTER_SIGN.split(self.text, maxsplit=1)
        return adapter[0] if adapter else None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ModelRef(Reference):
    """A model: `./folder`, `owner/name@revision`, `s3://bucket/model`, `$step`, any of them `+adapter`.

    `pkg:module`, `hf://owner/name@revision` and `https://server/model` are possible too.
    """

    accepts: ClassVar[tuple[str, ...]] = ("model",)
    files: ClassVar[Literal["all", "ranges"]] = "all"
    """The model files that a step needs: "all", or "ranges" of weights, which are read from the server."""

    @staticmethod
    def name_parts(references: Iterable[ModelRef]) -> dict[str, str]:
        """Map the text of each model's reference to the name of that model's part of a step.

        The names are ids of steps such as `model=bls.seed=1`. They stay different on every file system.
        """
        names: dict[str, str] = {}
        used_names: set[str] = set()
        for text in dict.fromkeys(reference.text for reference in references):
            # A step's id has no `+`, which would begin an adapter, and does not end in `.checkpoints`.
            step_text = hide_folders(text).removeprefix("$").replace(".checkpoints", "-checkpoints")
            slug = re.sub(r"[^\w.,=-]+", "-", step_text)[-_LONGEST_TEXT:].strip("-.") or "0"
            name, number = slug, 2
            while name.casefold() in used_names:
                name, number = f"{slug}-{number}", number + 1
            used_names.add(name.casefold())
            names[text] = f"model={name}"
        return names


@dataclass(frozen=True, slots=True)
class TensorRef(ModelRef):
    """Reference to a model whose tensors are read, and nothing else, through a `TensorReader`.

    A model on a server (`hf://`, `s3://`, `https://`) is then not downloaded as a whole.
    """

    files: ClassVar[Literal["all", "ranges"]] = "ranges"


@dataclass(frozen=True, slots=True)
class DataRef(Reference):
    """A data file or catalogue, or a step that makes data."""

    accepts: ClassVar[tuple[str, ...]] = ("data",)


@dataclass(frozen=True, slots=True)
class FileRef(Reference):
    """A file, or a step that makes one."""

    accepts: ClassVar[tuple[str, ...]] = ("statistics", "file")


@dataclass(frozen=True, slots=True)
class StepRef(Reference):
    """Any earlier step."""

    accepts: ClassVar[tuple[str, ...]] = get_args(ArtifactKind)

"""Inputs of a task as texts with references to media, and the prompts before them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from emberge import DataError, Media, MediaKind, join_parts
from emberge.media import MediaFolder

_KINDS: tuple[MediaKind, ...] = get_args(MediaKind)


@dataclass(frozen=True)
class Prompts:
    """Choice of a prompt by task and side: `template` if set, else one in `by_name`, else `default`."""

    template: str | None = None
    by_name: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def choose(
        self, task: str, kind: str, side: str | None, placeholders: Mapping[str, str]
    ) -> str:
        """Return the prompt of one side ("query", "document", or None where both are alike) of a task.

        `placeholders` are the texts for `{instruction}` and `{prompt}` in the template. A model's own prompts
        are looked up in mteb's order: task and side, task, kind and side, kind, side.
        """
        if self.template is not None:
            template = "" if side == "document" else self.template
            for name, value in placeholders.items():
                template = template.replace(f"{{{name}}}", value)
            return template
        names = [f"{task}-{side}", task, f"{kind}-{side}", kind, side or ""]
        if side == "document":
            names.append("passage")
        return next((self.by_name[name] for name in names if name in self.by_name), self.default)


class TaskTexts:
    """Inputs of a task's queries and documents as texts, as mteb joins titles and texts, and their prompts.

    Images and clips are kept as files below `media` until the next task, without duplicates.
    """

    def __init__(self, prompts: Prompts, media: Path) -> None:
        self.task = ""
        self._placeholders: Mapping[str, str] = {}
        self._prompts = prompts
        self._media = media

    def prepare(self, task: str, placeholders: Mapping[str, str]) -> None:
        """Set the next task's name, `instruction` and `prompt`; the media of another task are removed."""
        if task != self.task:
            shutil.rmtree(self._media, ignore_errors=True)
        self.task, self._placeholders = task, placeholders

    def read_texts(self, batches: Any) -> list[str]:
        """Return the texts of the batches of one of mteb's loaders, in order."""
        folder = MediaFolder(self._media)
        return [text for batch in batches for text in read_batch_inputs(batch, folder)]

    def find_prompt(self, side: str | None, task_metadata: Any) -> str:
        """Return the prompt of a side, or of both where they are alike (None)."""
        kind, values = task_metadata.type, self._placeholders
        return self._prompts.choose(task_metadata.name, kind, side, values)


def read_batch_inputs(batch: Mapping[str, Any], folder: MediaFolder) -> list[str]:
    """Return the inputs of a batch with `image`, `audio` and `text`, or some of them, in that order.

    A column of media has Pillow images, `{array, sampling_rate}`, lists of these, or for a local set texts
    with references to media.

    Raises:
        DataError: if a batch has video.
    """
    if "video" in batch:
        raise DataError("a task of videos cannot be scored; leave it out")
    columns: list[Any] = [*_KINDS, "text"]
    present_columns = [column for column in columns if column in batch]
    rows = zip(*(batch[column] for column in present_columns), strict=True)
    return [
        join_parts(
            [
                part
                for column, value in zip(present_columns, row, strict=True)
                for part in _yield_parts(column, value, folder)
            ]
        )
        for row in rows
    ]


def _yield_parts(column: Any, value: Any, folder: MediaFolder) -> Iterator[str | Media]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Sequence):
        for part in value:
            yield from _yield_parts(column, part, folder)
    elif column == "image":
        yield folder.add_image(value)
    elif value is not None:
        yield folder.add_clip(value["array"], value["sampling_rate"])

"""Inputs of a batch of mteb's as texts: images and clips are kept as files, and referred to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from emberge import Backbone, DataError, Media, MediaFacts, MediaKind, join_parts
from emberge.media import MediaFolder

_KINDS: tuple[MediaKind, ...] = get_args(MediaKind)
# Module that mteb's data of a kind is read with, and the package that has it.
_PACKAGES: Mapping[MediaKind, tuple[str, str]] = {
    "image": ("PIL", "pillow"),
    "audio": ("torchcodec", "torchcodec"),
}


def batch_inputs(batch: Mapping[str, Any], folder: MediaFolder) -> list[str]:
    """Return the inputs of a batch with `image`, `audio` and `text`, or some of them, in that order.

    A column of media has Pillow images or `{array, sampling_rate}`, lists of them, or, from a local set,
    texts with references.

    Raises:
        DataError: for video.
    """
    if "video" in batch:
        raise DataError("a task of videos cannot be scored; leave it out")
    columns: list[Any] = [*_KINDS, "text"]
    given = [column for column in columns if column in batch]
    rows = zip(*(batch[column] for column in given), strict=True)
    return [
        join_parts(
            [
                part
                for column, value in zip(given, row, strict=True)
                for part in _parts(column, value, folder)
            ]
        )
        for row in rows
    ]


def _parts(column: Any, value: Any, folder: MediaFolder) -> Iterator[str | Media]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Sequence):
        for one in value:
            yield from _parts(column, one, folder)
    elif column == "image":
        yield folder.add_image(value)
    elif value is not None:
        yield folder.add_clip(value["array"], value["sampling_rate"])


def first_tasks(tasks: Sequence[Any]) -> dict[MediaKind, str]:
    """Return the kinds of media that mteb's tasks have, each with the name of the first that has it."""
    found: dict[MediaKind, str] = {}
    for kind in _KINDS:
        names = [task.metadata.name for task in tasks if kind in task.modalities]
        if names:
            found[kind] = names[0]
    return found


def missing_packages(tasks: Sequence[Any]) -> Iterator[str]:
    """Yield what has to be installed for the data of mteb's tasks, with the first that needs it."""
    for kind, name in first_tasks(tasks).items():
        module, package = _PACKAGES[kind]
        if find_spec(module) is None:
            yield (
                f"mteb task '{name}' has data of the kind {kind}, which is read with {package}: pip "
                f"install {package}"
            )


def unread_media(
    backbone: Backbone, checkpoint: Path, kinds: Sequence[MediaKind], where: str
) -> list[str]:
    """Return reasons why a model does not read the media of a task; none where it does."""
    if not kinds:
        return []
    facts = MediaFacts(pair=f"{'+'.join(kinds)}-text", kinds=tuple(kinds), where=where)
    return backbone.check_media(checkpoint, facts)

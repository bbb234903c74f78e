"""Choice of the files that are published: those that a step's record names, and the card."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import published_files
from emberge.wording import join_some, printable

CARD, RECORD = "README.md", "artifact.json"
# Written into a result after its step, so not all of them are in its record.
_ADDED = (CARD, RECORD, "space.json")


@dataclass(frozen=True)
class ChosenFiles:
    """Files to publish by their names, and the names of what stays because no record has it."""

    files: Mapping[str, Path]
    left: tuple[str, ...]


def choose_files(folder: Path, record: Mapping[str, Any]) -> ChosenFiles:
    """Choose among the files of a result those that `record`, its artifact.json, names, and the card.

    States of trainings, their logs, hidden files and links are never among them.

    Raises:
        CheckpointError: for a file of the record or a card that is a link, or is behind one.
    """
    named = {*(record.get("files") or ()), *_ADDED}
    there = {path.relative_to(folder).as_posix(): path for path in published_files(folder)}
    links = sorted(_links_below(folder))
    bad = [name for name in links if name in named or any(n.startswith(f"{name}/") for n in named)]
    if bad:
        raise CheckpointError(
            f"{printable(folder / bad[0])}: is a link, and links are not followed when a model is "
            "published; put a copy in its place"
        )
    unnamed = {name for name in there if name not in named} | set(links)
    return ChosenFiles(
        {name: path for name, path in there.items() if name in named}, tuple(sorted(unnamed))
    )


def left_notes(left: tuple[str, ...]) -> Iterator[str]:
    """Yield a note on the files that stay, if there are any."""
    if left:
        shown = join_some(map(printable, left), 6)
        yield f"not uploaded, as {RECORD} does not name them: {shown}"


def _links_below(folder: Path) -> Iterator[str]:
    """Yield the names of all links in a folder; none is entered."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place) / name
            if path.is_symlink():
                yield path.relative_to(folder).as_posix()

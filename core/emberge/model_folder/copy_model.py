"""Copies of whole models: weights, configs, tokenizer, modules and licences, and nothing of a repository."""

from __future__ import annotations

import shutil
from pathlib import Path

from emberge.files.atomic import link_or_copy
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.model_files import copied_files, hashed_files

__all__ = ["copy_model"]


def copy_model(folder: Path, out: Path, *, link: bool = False) -> None:
    """Copy the files that make a model from one folder into another; files that are there are replaced.

    With `link` they are second names of the same files where the file system has hard links: for files that
    do not change any more, such as those of a step's result.
    """
    checkpoint = Checkpoint(folder)
    for module in checkpoint.chain:
        (out / module.path).mkdir(parents=True, exist_ok=True)  # some have no file
    for path in dict.fromkeys([*hashed_files(folder), *copied_files(checkpoint)]):
        place = out / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        if link:
            link_or_copy(str(path), str(place))
        else:
            place.unlink(missing_ok=True)
            shutil.copyfile(path, place)

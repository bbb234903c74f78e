"""Copies of whole models: weights, configs, tokenizer, modules and licences, and nothing of a repository."""

from __future__ import annotations

from pathlib import Path

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.model_code import drop_code
from emberge.model_folder.model_files import copied_files, copy_file, hashed_files


def copy_model(folder: Path, out: Path, *, link: bool = False) -> None:
    """Copy the files that make a model from one folder into another; files that are there are replaced.

    With `link` they are second names of the same files where the file system has hard links: for files that
    do not change any more, such as those of a step's result.
    """
    checkpoint = Checkpoint(folder)
    for module in checkpoint.chain:
        (out / module.path).mkdir(parents=True, exist_ok=True)  # some have no file
    for path in dict.fromkeys([*hashed_files(folder), *copied_files(checkpoint)]):
        if path.suffix != ".py":
            copy_file(path, out / path.relative_to(folder), folder, link=link)
    drop_code(checkpoint, out)

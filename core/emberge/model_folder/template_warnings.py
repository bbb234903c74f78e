"""Lines and warnings about the template, the folder that gives a result all but its weights."""

from __future__ import annotations

from collections.abc import Iterator

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.model_code import code_of_class, named_code
from emberge.model_folder.model_files import files_not_copied
from emberge.wording import join_some

_SHOWN = 3


def origin_line(template: Checkpoint) -> str:
    """Return one line about the template: its name, and the files that are not copied, with reasons."""
    name = template.folder.name
    left = [
        f"{join_some(names, _SHOWN)} ({reason})"
        for reason, names in files_not_copied(template).items()
    ]
    behind = f"; left out: {', '.join(left)}" if left else ""
    return f"configs, tokenizer and modules come from '{name}'{behind}"


def remarks(template: Checkpoint) -> Iterator[str]:
    """Yield warnings of what a user of the result will miss or need."""
    reads_text = bool(template.modules) or "model_type" in template.config
    if reads_text and not template.has_tokenizer:
        yield (
            f"'{template.folder.name}' has no tokenizer, and so the result will have none; "
            "name a model that has one with 'tokenizer'"
        )
    code = named_code(template)
    if code and code_of_class(template.config) is None:
        yield (
            f"'{template.folder.name}' names code of its own ({join_some(code, _SHOWN)}), which no result "
            "takes over: the result is loaded by transformers' own class of its model_type"
        )

"""Which text goes before a text: the model's own prompts, or a template with the task's instruction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import CheckpointError

__all__ = ["Prompts"]

_FILE = "config_sentence_transformers.json"


@dataclass(frozen=True)
class Prompts:
    """Chooses a prompt by task and side. `template` beats the model's `own`; `default` is its fallback."""

    template: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def text(self, task: str, kind: str, side: str | None, instruction: str) -> str:
        """The prompt of one side ("query", "document", or None where both are alike) of a task.

        A model's own prompts are looked up in mteb's order: task and side, task, kind and side, kind, side.
        """
        if self.template is not None:
            return "" if side == "document" else self.template.replace("{instruction}", instruction)
        names = [f"{task}-{side}", task, f"{kind}-{side}", kind, side or ""]
        if side == "document":
            names.append("passage")
        return next((self.own[name] for name in names if name in self.own), self.default)


def sentence_transformers_config(folder: Path) -> dict[str, Any]:
    """Contents of `config_sentence_transformers.json`; empty when there is none.

    Raises:
        CheckpointError: when it is no JSON object.
    """
    path = folder / _FILE
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: this is no JSON ({error}); copy it anew") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: a JSON object was expected")
    return config

"""Prompts before texts: the model's own, or a template with the task's instruction."""

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
    """Choice of a prompt by task and side. `template` beats the model's `own`; `default` is its fallback."""

    template: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    default: str = ""

    def text(self, task: str, kind: str, side: str | None, asked: Mapping[str, str]) -> str:
        """Return the prompt of one side ("query", "document", or None where both are alike) of a task.

        `asked` fills the template: the texts for `{instruction}` and `{prompt}`. A model's own prompts are
        looked up in mteb's order: task and side, task, kind and side, kind, side.
        """
        if self.template is not None:
            return "" if side == "document" else _filled(self.template, asked)
        names = [f"{task}-{side}", task, f"{kind}-{side}", kind, side or ""]
        if side == "document":
            names.append("passage")
        return next((self.own[name] for name in names if name in self.own), self.default)


def _filled(template: str, asked: Mapping[str, str]) -> str:
    for name, value in asked.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def sentence_transformers_config(folder: Path) -> dict[str, Any]:
    """Return the contents of `config_sentence_transformers.json`; empty when there is none.

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

"""Chat templates: one of mergekit's by name, a text, or the most frequent one among the models."""

from __future__ import annotations

import importlib.resources
from collections import Counter
from collections.abc import Iterable

from emberge import suggest

_SUFFIX = ".jinja"


def known_templates() -> list[str]:
    """Return the names of the templates that come with mergekit, without importing its code."""
    folder = importlib.resources.files("mergekit._data") / "chat_templates"
    return sorted(
        path.name.removesuffix(_SUFFIX) for path in folder.iterdir() if path.name.endswith(_SUFFIX)
    )


def fault_of(template: str | None) -> str | None:
    """Return the problem of a chat template, or None; it may be `auto`, a name or a text with braces."""
    if template is None or template == "auto" or "{" in template:
        return None
    names = known_templates()
    if template in names:
        return None
    hint = suggest(template, names) or f"; there are auto, {', '.join(names)}"
    return f"there is no chat template '{template[:40]}'{hint}"


def chosen_template(template: str, of_models: Iterable[str | None]) -> str | None:
    """Return the template's text; for `auto` the models' most frequent one, or None if none has one."""
    if template == "auto":
        counts = Counter(text.strip() for text in of_models if text)
        return counts.most_common(1)[0][0] if counts else None
    if "{" in template:
        return template
    folder = importlib.resources.files("mergekit._data") / "chat_templates"
    return (folder / f"{template}{_SUFFIX}").read_text(encoding="utf-8")

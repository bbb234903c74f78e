"""Chat templates: mergekit's by name, a text, or the one that most models have."""

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
    """Return what is wrong with a chat template, which is `auto`, a name, or a text with braces."""
    if template is None or template == "auto" or "{" in template:
        return None
    known = known_templates()
    if template in known:
        return None
    hint = suggest(template, known) or f"; there are auto, {', '.join(known)}"
    return f"there is no chat template '{template[:40]}'{hint}"


def chosen_template(template: str, of_models: Iterable[str | None]) -> str | None:
    """Return the text of the template; None for `auto` where no model has one."""
    if template == "auto":
        counted = Counter(one.strip() for one in of_models if one)
        return counted.most_common(1)[0][0] if counted else None
    if "{" in template:
        return template
    folder = importlib.resources.files("mergekit._data") / "chat_templates"
    return (folder / f"{template}{_SUFFIX}").read_text(encoding="utf-8")

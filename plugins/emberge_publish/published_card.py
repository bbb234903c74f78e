"""Card of a published model: that of its run, with licence, lineage, data and overlap with tests."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml
from emberge import EmbergeError
from emberge.recipes import Parent
from emberge.wording import Markdown, join_some, prose, table_lines, web_link

from emberge_publish.ancestors import Ancestors, is_of_hub, shown_name
from emberge_publish.licences import Terms

__all__ = ["overlap_of", "published_card"]

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
# Terms of an author's own that hubs have an identifier for.
_KNOWN_TERMS = re.compile(r"(gemma|llama[\d.]+|.*openrail.*|deepfloyd-if-license|etalab-2\.0)")
_REPLACED = ("Licence", "Lineage", "Training data of the ancestors", "Overlap with test sets")
_MANY = 12
# A line that opens a block of code, or closes one that was opened by no more marks of the kind.
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
# The title, and the line of the run's card that loads the model by the name that it had in the run.
_TITLE = re.compile(r"^# .*$", re.MULTILINE)
_LOADED = re.compile(r'(= \w+\()"(?:[^"\\]|\\.)*"(.*?\))  # the path of this folder, or its hub id')


def published_card(
    text: str,
    name: str,
    ancestors: Ancestors,
    terms: Terms,
    tasks: Mapping[str, Collection[str] | None],
    scored: Collection[str],
) -> str:
    """Return the card of a model under its name on a hub.

    `text` is the card in its folder; `tasks` are the test sets that each ancestor is known to have been
    trained on, None where that is unknown, `scored` those that it was scored on.
    """
    matter, body = _split(text)
    sections = [
        _lineage(ancestors),
        _training_data(ancestors),
        _overlap(ancestors, tasks, scored),
        _licence(ancestors, terms),
    ]
    kept = _without(_renamed(body, name), _REPLACED).rstrip()
    if not kept:
        kept = f"# {name.partition('/')[2]}\n\nAn embedding model, made with emberge."
    whole = "\n\n".join([kept, *("\n".join(section) for section in sections)])
    front = yaml.safe_dump(
        _front(matter, name, ancestors, terms), sort_keys=False, allow_unicode=True
    )
    return f"---\n{front}---\n\n{whole.strip()}\n"


def overlap_of(
    tasks: Mapping[str, Collection[str] | None], scored: Collection[str]
) -> dict[str, list[str]]:
    """Return the ancestors that were trained on a task among `scored`, by that task."""
    return {
        task: [one for one, known in tasks.items() if known is not None and task in known]
        for task in sorted(scored)
        if any(known is not None and task in known for known in tasks.values())
    }


def _split(text: str) -> tuple[dict[str, Any], str]:
    """Return a card's front matter and the text after it."""
    found = re.match(r"---\s*\n(.*?)\n---\s*(?:\n|$)", text, re.DOTALL)
    if found is None:
        return {}, text
    try:
        matter = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        raise EmbergeError(f"README.md: its front matter is no YAML ({error}); mend it") from error
    return (matter if isinstance(matter, dict) else {}), text[found.end() :]


def _front(matter: dict[str, Any], name: str, ancestors: Ancestors, terms: Terms) -> dict[str, Any]:
    front = {key: value for key, value in matter.items() if not key.startswith("license")}
    licence = terms.licence or ""
    if terms.own and not _KNOWN_TERMS.fullmatch(licence):
        front |= {"license": "other", "license_name": licence}
    else:
        front["license"] = licence
    if ancestors.bases:
        front["base_model"] = ancestors.bases
        relation = "merge" if ancestors.merged else "finetune"
        front.setdefault("base_model_relation", relation)
    datasets = [one.name for one in ancestors.data if _HUB_ID.fullmatch(one.name)]
    datasets += [data for one in ancestors.models for data in one.datasets]
    if datasets:
        front["datasets"] = list(dict.fromkeys(datasets))
    front.setdefault("library_name", "sentence-transformers")
    for index in front.get("model-index") or ():
        index["name"] = name.partition("/")[2]
    return front


def _renamed(body: str, name: str) -> str:
    """Return the text with the model's name on the hub as its title and where it is loaded."""
    titled = _TITLE.sub(f"# {name.partition('/')[2]}", body, count=1)
    return _LOADED.sub(rf'\1"{name}"\2', titled)


def _without(body: str, titles: Sequence[str]) -> str:
    """Return a text without the sections of some titles; lines of code blocks are no titles."""
    lines: list[str] = []
    left_out, fence = False, ""
    for line in body.split("\n"):
        if not fence and line.startswith("## "):
            left_out = line.removeprefix("## ").strip() in titles
        fence = _fence_after(line, fence)
        if not left_out:
            lines.append(line)
    return "\n".join(lines)


def _fence_after(line: str, fence: str) -> str:
    """Return the fence of the block of code that is open after a line; "" outside of one."""
    found = _FENCE.match(line)
    if found is None:
        return fence
    if not fence:
        return found[1]
    closes = found[1].startswith(fence) and not found[2].strip()
    return "" if closes else fence


def _called(one: Parent) -> Markdown:
    return web_link(shown_name(one.name), one.link)


def _lineage(ancestors: Ancestors) -> list[str]:
    rows = []
    for one in ancestors.models:
        declared = " (as the publisher states)" if one.name in ancestors.declared else ""
        rows.append([_called(one), one.revision or "–", f"{one.licence or 'unknown'}{declared}"])
    lines = ["## Lineage", "", *table_lines(["It goes back to", "Revision", "Licence"], rows)]
    further = [(o, [b for b in o.bases if b != o.name]) for o in ancestors.models]
    for one, bases in further:
        if bases:
            lines += [
                "",
                f"{_called(one)} was made of {prose(', '.join(bases))}, as its card states.",
            ]
    return lines


def _training_data(ancestors: Ancestors) -> list[str]:
    lines = ["## Training data of the ancestors", ""]
    for one in ancestors.models:
        named = prose(", ".join(one.datasets)) or "unknown: its card names none"
        if not one.card and not one.datasets:
            named = "unknown: it has no card that can be found"
        lines.append(f"- {_called(one)}: {named}")
    own = ", ".join(prose(data.name) for data in ancestors.data)
    lines.append(f"- the run that made this model: {own or 'no training'}")
    return lines


def _overlap(
    ancestors: Ancestors, tasks: Mapping[str, Collection[str] | None], scored: Collection[str]
) -> list[str]:
    lines = ["## Overlap with test sets", ""]
    lines += [f"- {_called(one)}: {_known(one, tasks.get(one.name))}" for one in ancestors.models]
    both = overlap_of(tasks, scored)
    if both:
        lines += ["", f"Scored above, and trained on by an ancestor: {prose(', '.join(both))}."]
    return lines


def _known(one: Parent, known: Collection[str] | None) -> str:
    """Return what mteb's register knows of a model: its own entry, or those of what it was made of."""
    listed = prose(join_some(sorted(known or ()), _MANY))
    if not is_of_hub(one):
        made_of = prose(", ".join(one.bases))
        through = f"; through {made_of} it saw {listed}" if listed else ""
        return f"unknown for its own training data{through}"
    if known is None:
        return "unknown: mteb's register lists no training data of it"
    if not known:
        return "mteb's register lists none of its test sets among its training data"
    return f"trained on {len(known)} of mteb's test sets: {listed}"


def _licence(ancestors: Ancestors, terms: Terms) -> list[str]:
    def stated() -> Iterator[str]:
        for one in ancestors.sources:
            if one.licence:
                yield f"{prose(shown_name(one.name))}: {prose(one.licence)}"

    silent = [prose(one.name) for one in ancestors.data if not one.licence]
    lines = [
        "## Licence",
        "",
        f"{prose(terms.licence or 'unknown')}, which keeps to those of:",
        "",
    ]
    lines += [f"- {line}" for line in stated()]
    if silent:
        lines += ["", f"Unknown for the data {', '.join(silent)}."]
    return [
        *lines,
        "",
        "This was gathered from cards and is no legal advice: check the licences of all parents and of all "
        "data yourself.",
    ]

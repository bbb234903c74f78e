"""Card of a published model: that of its run or of its author, with lineage, data, overlap and licence."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import yaml
from emberge import EmbergeError
from emberge.documents import BulletList, Card, Section, TextTable
from emberge.model_folder import split_card
from emberge.results import Parent
from emberge.wording import Markdown, join_some, prose, web_link

from emberge_publish.ancestors import Ancestors, is_of_hub, shown_name
from emberge_publish.licences import Terms

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
# Terms of an author's own that hubs have an identifier for.
_KNOWN_TERMS = re.compile(r"(gemma|llama[\d.]+|.*openrail.*|deepfloyd-if-license|etalab-2\.0)")
_MANY = 12


def published_card(
    card: Card,
    ancestors: Ancestors,
    terms: Terms,
    tasks: Mapping[str, Collection[str] | None],
    scored: Collection[str],
) -> Card:
    """Return a model's card with what is known of its ancestors, and the licence that follows.

    `tasks` are the test sets that each ancestor is known to have been trained on, None where that is unknown,
    `scored` those that it was scored on.
    """
    whole = card.with_sections(
        _build_lineage_section(ancestors),
        _build_training_section(ancestors),
        _build_overlap_section(ancestors, tasks, scored),
        _build_licence_section(ancestors, terms),
    )
    return replace(whole, front=_build_front(card.front, ancestors, terms))


def authors_card(text: str) -> Card:
    """Return the card that somebody wrote by hand: its text stays as it is.

    Raises:
        EmbergeError: for front matter that is no YAML.
    """
    front, body = split_card(text)
    try:
        found = yaml.load(front, Loader=_TextOfNo)
    except yaml.YAMLError as error:
        raise EmbergeError(f"README.md: its front matter is no YAML ({error}); mend it") from error
    return Card(opening=[Markdown(body.strip())], front=found if isinstance(found, dict) else {})


class _TextOfNo(yaml.SafeLoader):
    """Loader that takes `true` and `false` alone for truth values, so that the language `no` is text."""


_TRUTH = re.compile("(?i:true|false)$")
_TextOfNo.yaml_implicit_resolvers = {
    first: [(tag, _TRUTH if tag.endswith(":bool") else form) for tag, form in known]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def overlap_of(
    tasks: Mapping[str, Collection[str] | None], scored: Collection[str]
) -> dict[str, list[str]]:
    """Return the ancestors that were trained on a task among `scored`, by that task."""
    return {
        task: [one for one, known in tasks.items() if known is not None and task in known]
        for task in sorted(scored)
        if any(known is not None and task in known for known in tasks.values())
    }


def _build_front(given: Mapping[str, Any], ancestors: Ancestors, terms: Terms) -> dict[str, Any]:
    front = {key: value for key, value in given.items() if not key.startswith("license")}
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
    return front


def _link_parent(one: Parent) -> Markdown:
    return web_link(shown_name(one.name), one.link)


def _build_lineage_section(ancestors: Ancestors) -> Section:
    rows = []
    for one in ancestors.models:
        declared = " (as the publisher states)" if one.name in ancestors.declared else ""
        rows.append(
            [_link_parent(one), one.revision or "–", f"{one.licence or 'unknown'}{declared}"]
        )
    further = [
        Markdown(f"{_link_parent(one)} was made of {prose(', '.join(bases))}, as its card states.")
        for one in ancestors.models
        if (bases := [base for base in one.bases if base != one.name])
    ]
    table = TextTable(["It goes back to", "Revision", "Licence"], rows)
    return Section("Lineage", [table, *further])


def _build_training_section(ancestors: Ancestors) -> Section:
    items = []
    for one in ancestors.models:
        named = prose(", ".join(one.datasets)) or "unknown: its card names none"
        if not one.card and not one.datasets:
            named = "unknown: it has no card that can be found"
        items.append(Markdown(f"{_link_parent(one)}: {named}"))
    own = ", ".join(data.name for data in ancestors.data)
    run = prose(f"the run that made this model: {own or 'no training'}")
    return Section("Training data of the ancestors", [BulletList([*items, run])])


def _build_overlap_section(
    ancestors: Ancestors, tasks: Mapping[str, Collection[str] | None], scored: Collection[str]
) -> Section:
    items = [
        Markdown(f"{_link_parent(one)}: {_describe_overlap(one, tasks.get(one.name))}")
        for one in ancestors.models
    ]
    both = overlap_of(tasks, scored)
    seen = [f"Scored above, and trained on by an ancestor: {', '.join(both)}."] if both else []
    return Section("Overlap with test sets", [BulletList(items), *seen])


def _describe_overlap(one: Parent, known: Collection[str] | None) -> str:
    """Return the test sets that mteb's register lists for a model, or for its bases, in words."""
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


def _build_licence_section(ancestors: Ancestors, terms: Terms) -> Section:
    stated = [f"{shown_name(o.name)}: {o.licence}" for o in ancestors.sources if o.licence]
    silent = [data.name for data in ancestors.data if not data.licence]
    unknown = [f"Unknown for the data {', '.join(silent)}."] if silent else []
    advice = (
        "This was gathered from cards and is no legal advice: check the licences of all parents and of all "
        "data yourself."
    )
    first = f"{terms.licence or 'unknown'}, which keeps to those of:"
    return Section("Licence", [first, BulletList(stated), *unknown, advice])

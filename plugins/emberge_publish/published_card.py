"""Card of a published model: the run's or the author's card, with lineage, data, overlap and licence."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import yaml
from emberge import EmbergeError
from emberge.documents import BulletList, Card, Section, TextTable
from emberge.model_folder import split_card
from emberge.results import Parent, Trained
from emberge.wording import Markdown, join_some, prose, web_link

from emberge_publish.ancestors import Ancestors, is_of_hub, shown_name
from emberge_publish.licences import Terms
from emberge_publish.training_summary import SUMMARY

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HUB_PAGE = re.compile(r"https://huggingface\.co/datasets/([\w][\w.-]*/[\w][\w.-]*)")
# Terms of an author's own that hubs have an identifier for.
_KNOWN_TERMS = re.compile(r"(gemma|llama[\d.]+|.*openrail.*|deepfloyd-if-license|etalab-2\.0)")
_MOST_LISTED = 12


def published_card(
    card: Card,
    ancestors: Ancestors,
    terms: Terms,
    tasks: Mapping[str, Collection[str] | None],
    scored: Collection[str],
) -> Card:
    """Return the model's card with sections on its ancestors, their data, test sets and licence.

    `tasks` has the test sets that each ancestor was trained on (None if unknown), `scored` the test sets that
    the model was scored on.
    """
    full_card = card.with_sections(
        _build_lineage_section(ancestors),
        _build_training_section(ancestors),
        _build_overlap_section(ancestors, tasks, scored),
        _build_licence_section(ancestors, terms),
    )
    return replace(full_card, front=_build_front(card.front, ancestors, terms))


def authors_card(text: str) -> Card:
    """Return a hand-written card, its text unchanged.

    Raises:
        EmbergeError: if its front matter is not valid YAML.
    """
    front, body = split_card(text)
    try:
        content = yaml.load(front, Loader=_NoStaysText)
    except yaml.YAMLError as error:
        raise EmbergeError(f"README.md: its front matter is no YAML ({error}); mend it") from error
    return Card(
        opening=[Markdown(body.strip())], front=content if isinstance(content, dict) else {}
    )


class _NoStaysText(yaml.SafeLoader):
    """Loader that reads only `true` and `false` as truth values, so that the language `no` stays text."""


_TRUTH = re.compile("(?i:true|false)$")
_NoStaysText.yaml_implicit_resolvers = {
    first: [(tag, _TRUTH if tag.endswith(":bool") else form) for tag, form in known]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def overlap_of(
    tasks: Mapping[str, Collection[str] | None], scored: Collection[str]
) -> dict[str, list[str]]:
    """Map each task of `scored` to the ancestors that were trained on it."""
    return {
        task: [
            ancestor
            for ancestor, trained_on in tasks.items()
            if trained_on is not None and task in trained_on
        ]
        for task in sorted(scored)
        if any(trained_on is not None and task in trained_on for trained_on in tasks.values())
    }


def _build_front(
    base_front: Mapping[str, Any], ancestors: Ancestors, terms: Terms
) -> dict[str, Any]:
    front = {key: value for key, value in base_front.items() if not key.startswith("license")}
    licence = terms.licence or ""
    if terms.own and not _KNOWN_TERMS.fullmatch(licence):
        front |= {"license": "other", "license_name": licence}
    else:
        front["license"] = licence
    if ancestors.bases:
        front["base_model"] = ancestors.bases
        relation = "merge" if ancestors.merged else "finetune"
        front.setdefault("base_model_relation", relation)
    datasets = [name for one in ancestors.data if (name := _find_hub_name(one))]
    datasets += [data for one in ancestors.outside for data in one.datasets]
    if datasets:
        front["datasets"] = list(dict.fromkeys(datasets))
    front.setdefault("library_name", "sentence-transformers")
    return front


def _find_hub_name(data: Trained) -> str | None:
    """Return the name of a hub dataset, from the page of its origin or its own name; None for others."""
    page = _HUB_PAGE.fullmatch(data.origin.url or "")
    return page[1] if page else data.name if _HUB_ID.fullmatch(data.name) else None


def _link_parent(parent: Parent) -> Markdown:
    return web_link(shown_name(parent.name), parent.link)


def _build_lineage_section(ancestors: Ancestors) -> Section:
    rows = []
    for model in ancestors.models:
        declared = " (as the publisher states)" if model.name in ancestors.declared else ""
        rows.append(
            [_link_parent(model), model.revision or "–", f"{model.licence or 'unknown'}{declared}"]
        )
    base_notes = [
        Markdown(
            f"{_link_parent(model)} was made of {prose(', '.join(bases))}, as its card states."
        )
        for model in ancestors.models
        if (bases := [base for base in model.bases if base != model.name])
    ]
    table = TextTable(["It goes back to", "Revision", "Licence"], rows)
    return Section("Lineage", [table, *base_notes])


def _build_training_section(ancestors: Ancestors) -> Section:
    items = []
    for model in ancestors.outside:
        datasets = prose(", ".join(model.datasets)) or "unknown: its card names none"
        if not model.card and not model.datasets:
            datasets = "unknown: it has no card that can be found"
        items.append(Markdown(f"{_link_parent(model)}: {datasets}"))
    trained_data = ", ".join(data.name for data in ancestors.data)
    run_line = prose(f"the runs behind this model: {trained_data or 'no training'}")
    link = Markdown(
        f"[{SUMMARY}]({SUMMARY}) has the rows, licence, source and personal data of each set."
    )
    listed = BulletList([*items, run_line])
    return Section("Training data of the ancestors", [listed, link])


def _build_overlap_section(
    ancestors: Ancestors, tasks: Mapping[str, Collection[str] | None], scored: Collection[str]
) -> Section:
    items = [
        Markdown(f"{_link_parent(model)}: {_describe_overlap(model, tasks.get(model.name))}")
        for model in ancestors.outside
    ]
    overlap = overlap_of(tasks, scored)
    warning = (
        [f"Scored above, and trained on by an ancestor: {', '.join(overlap)}."] if overlap else []
    )
    return Section("Overlap with test sets", [BulletList(items), *warning])


def _describe_overlap(model: Parent, trained_on: Collection[str] | None) -> str:
    """Return a sentence on the test sets that mteb's register lists for a model or its bases."""
    task_list = prose(join_some(sorted(trained_on or ()), _MOST_LISTED))
    if not is_of_hub(model):
        made_of = prose(", ".join(model.bases))
        parent_note = f"; through {made_of} it saw {task_list}" if task_list else ""
        return f"unknown for its own training data{parent_note}"
    if trained_on is None:
        return "unknown: mteb's register lists no training data of it"
    if not trained_on:
        return "mteb's register lists none of its test sets among its training data"
    return f"trained on {len(trained_on)} of mteb's test sets: {task_list}"


def _build_licence_section(ancestors: Ancestors, terms: Terms) -> Section:
    known_licences = [f"{shown_name(o.name)}: {o.licence}" for o in ancestors.sources if o.licence]
    unlicensed_data = [data.name for data in ancestors.data if not data.licence]
    unknown_notes = (
        [f"Unknown for the data {', '.join(unlicensed_data)}."] if unlicensed_data else []
    )
    advice = (
        "This was gathered from cards and is no legal advice: check the licences of all parents and of all "
        "data yourself."
    )
    introduction = f"{terms.licence or 'unknown'}, which keeps to those of:"
    return Section("Licence", [introduction, BulletList(known_licences), *unknown_notes, advice])

"""Summary of a model's training data in the layout of the EU's template for general-purpose AI models.

The template is that of the European Commission for Article 53(1)(d) of Regulation (EU) 2024/1689. Facts come
from recipes, catalogues and cards, and from statements of the publisher; a fact that none of them has is "not
stated".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emberge import suggest
from emberge.contracts import DataOrigin
from emberge.results import Parent, Trained
from emberge.wording import Markdown, code_span, join_some, prose, table_lines, web_link

from emberge_publish.ancestors import Ancestors, shown_name

SUMMARY, SUMMARY_FACTS = "training_data.md", "training_data.json"
_NOT_STATED = "not stated"
_TITLES = {
    "1.1": "Provider identification",
    "1.2": "Model identification",
    "1.3": "Modalities, overall training data size and other characteristics",
    "2.1": "Publicly available datasets",
    "2.2": "Private non-publicly available datasets obtained from third parties",
    "2.2.1": "Datasets commercially licensed by rightsholders or their representatives",
    "2.2.2": "Private datasets obtained from other third parties",
    "2.3": "Data crawled and scraped from online sources",
    "2.4": "User data",
    "2.5": "Synthetic data",
    "2.6": "Other sources of data",
    "3.1": "Respect of reservation of rights from text and data mining exception or limitation",
    "3.2": "Removal of illegal content",
    "3.3": "Other information",
}
_SECTION_BY_KIND = {
    "public": "2.1",
    "licensed": "2.2.1",
    "private": "2.2.2",
    "crawled": "2.3",
    "user": "2.4",
    "synthetic": "2.5",
    "other": "2.6",
}


def list_statement_faults(statements: Iterable[str]) -> Iterator[str]:
    """Yield a message for each section of a statement that the summary does not have."""
    for section in statements:
        if section not in _TITLES:
            hint = suggest(section, _TITLES) or f"; it has {', '.join(_TITLES)}"
            yield f"the summary of training data has no section '{section}'{hint}"


@dataclass(frozen=True)
class TrainingSummary:
    """Summary of the data that a model and its ancestors were trained on.

    `name` is the model's name on the hub, `version` the fingerprint of the step that made it. `statements`
    are the publisher's own texts by the section's number.
    """

    name: str
    version: str
    ancestors: Ancestors
    statements: Mapping[str, str] = field(default_factory=dict)

    def draw(self) -> dict[str, str]:
        """Return the summary as text of Markdown and JSON, by the files' names."""
        facts = json.dumps(self._describe(), indent=1, ensure_ascii=False)
        text = "\n\n".join(self._list_passages())
        return {SUMMARY: f"{text}\n", SUMMARY_FACTS: f"{facts}\n"}

    def _describe(self) -> dict[str, Any]:
        """Return all facts as values of JSON."""
        return {
            "model": self.name,
            "version": self.version,
            "statements": dict(self.statements),
            "base_models": [_describe_model(model) for model in self.ancestors.outside],
            "training_sets": [_describe_set(dataset) for dataset in self.ancestors.data],
        }

    def _list_passages(self) -> Iterator[str]:
        yield f"# Public summary of training content: {prose(self.name)}"
        yield (
            "In the layout of the European Commission's template for Article 53(1)(d) of Regulation (EU) "
            "2024/1689. It has what recipes, catalogues and cards state of the data; the rest is called "
            "not stated. This is no legal advice. Last update: the commit that has this file. "
            f"[{SUMMARY_FACTS}]({SUMMARY_FACTS}) has the same facts."
        )
        yield "## 1. General information"
        yield from self._draw_section("1.1", self._describe_provider())
        yield from self._draw_section("1.2", self._describe_identity())
        yield from self._draw_section("1.3", self._describe_size())
        yield "## 2. List of data sources"
        for section in (one for one in _TITLES if one.startswith("2.")):
            yield from self._draw_section(section, self._list_sources(section))
        kindless = [dataset for dataset in self.ancestors.data if dataset.origin.kind is None]
        if kindless:
            yield "### Sets whose kind of source is not stated"
            yield _draw_sets(kindless)
        yield "## 3. Data processing aspects"
        for section in ("3.1", "3.2", "3.3"):
            missing = [] if section in self.statements else [_NOT_STATED.capitalize() + "."]
            yield from self._draw_section(section, missing)

    def _draw_section(self, section: str, passages: Iterable[str]) -> Iterator[str]:
        """Yield a section: its title, its passages, and the publisher's statement."""
        level = "####" if section.count(".") == 2 else "###"
        yield f"{level} {section}. {_TITLES[section]}"
        yield from passages
        if section in self.statements:
            yield f"The publisher states: {prose(self.statements[section])}"

    def _describe_provider(self) -> Iterator[str]:
        yield _draw_items({"Account on the hub": prose(self.name.partition("/")[0])})
        if "1.1" not in self.statements:
            yield "Name and contact details of the provider: not stated."

    def _describe_identity(self) -> Iterator[str]:
        yield _draw_items(
            {
                "Versioned model name": Markdown(f"{prose(self.name)}, {code_span(self.version)}"),
                "Model dependencies": prose(
                    ", ".join(shown_name(model.name) for model in self.ancestors.outside) or "none"
                ),
                "Date of placement of the model on the Union market": _NOT_STATED,
            }
        )
        if self.ancestors.outside:
            head = [
                "Model dependency",
                "Revision",
                "Licence",
                "Training data, as its card names them",
            ]
            yield "\n".join(table_lines(head, map(_build_model_row, self.ancestors.outside)))
            yield "The data of these models are not counted below; their own providers describe them."

    def _describe_size(self) -> Iterator[str]:
        data = self.ancestors.data
        if not data:
            yield "No training of a known run is behind this model."
            return
        rows = [[kind, _sum_rows(sets)] for kind, sets in _group_by_modality(data).items()]
        yield "\n".join(table_lines(["Modality", "Training data size"], rows))
        yield _draw_items(
            {
                "Size in tokens, images or hours": _NOT_STATED,
                "Latest date of data collection": _list_facts(
                    data, lambda one: one.origin.collected
                ),
                "Languages": _list_facts(data, lambda one: one.language),
                "Personal data": _list_facts(
                    data, lambda one: _show_flag(one.origin.personal_data)
                ),
            }
        )

    def _list_sources(self, section: str) -> Iterator[str]:
        if section == "2.2":
            return
        data = self.ancestors.data
        sets = [one for one in data if _SECTION_BY_KIND.get(one.origin.kind or "") == section]
        if section == "2.5":
            sets = [
                one for one in data if one in sets or one.origin.written_by or one.origin.scored_by
            ]
        if sets:
            yield _draw_sets(sets)
        if section == "2.5" and (models := _list_generators(sets)):
            yield _draw_items(models)
        if not sets and section not in self.statements:
            yield "No set of this kind is stated."


def _describe_model(model: Parent) -> dict[str, Any]:
    return {
        "name": shown_name(model.name),
        "revision": model.revision,
        "link": model.link,
        "licence": model.licence,
        "datasets": list(model.datasets) or None,
    }


def _describe_set(dataset: Trained) -> dict[str, Any]:
    origin = dataset.origin
    return {
        "name": dataset.name,
        "section": _SECTION_BY_KIND.get(origin.kind or ""),
        "task": dataset.task or None,
        "rows": dataset.rows,
        "of": dataset.whole,
        "language": dataset.language,
        "modalities": _list_modalities(dataset),
        "licence": origin.licence,
        "kind": origin.kind,
        "url": origin.url,
        "personal_data": origin.personal_data,
        "collected": origin.collected,
        "written_by": list(map(_shorten_name, origin.written_by)),
        "scored_by": list(map(_shorten_name, origin.scored_by)),
        "ind_tasks": None if dataset.tasks is None else list(dataset.tasks),
    }


def _shorten_name(model: str) -> str:
    return shown_name(model.removeprefix("$"))


def _list_modalities(dataset: Trained) -> list[str]:
    return ["text", *dataset.media]


def _group_by_modality(data: Sequence[Trained]) -> dict[str, list[Trained]]:
    groups: dict[str, list[Trained]] = {}
    for dataset in data:
        groups.setdefault(" and ".join(_list_modalities(dataset)), []).append(dataset)
    return groups


def _sum_rows(sets: Sequence[Trained]) -> str:
    """Return the number of examples of sets as text, with the sets whose number is not stated."""
    known_counts = [dataset.rows for dataset in sets if dataset.rows is not None]
    unknown = [dataset.name for dataset in sets if dataset.rows is None]
    known = [f"{sum(known_counts):,} examples"] if known_counts else []
    return ", ".join([*known, *([f"{_NOT_STATED} for {join_some(unknown, 6)}"] if unknown else [])])


def _list_facts(data: Sequence[Trained], read: Callable[[Trained], str | None]) -> Markdown:
    """Return one fact of all sets, by its value: `de: faq; not stated: legal`."""
    names: dict[str, list[str]] = {}
    for dataset in sorted(data, key=lambda one: read(one) is None):
        names.setdefault(read(dataset) or _NOT_STATED, []).append(dataset.name)
    return prose("; ".join(f"{value}: {', '.join(sets)}" for value, sets in names.items()))


def _show_flag(flag: bool | None) -> str | None:
    return None if flag is None else "yes" if flag else "no"


def _list_generators(sets: Sequence[Trained]) -> dict[str, Markdown]:
    """Map each way of generating to the models that did it, with the sets of each."""
    ways: dict[str, Callable[[DataOrigin], Sequence[str]]] = {
        "Texts written by": lambda origin: origin.written_by,
        "Scores given by": lambda origin: origin.scored_by,
    }
    found: dict[str, Markdown] = {}
    for way, read in ways.items():
        by_model: dict[str, list[str]] = {}
        for dataset in sets:
            for model in read(dataset.origin):
                by_model.setdefault(_shorten_name(model), []).append(dataset.name)
        if by_model:
            found[way] = prose(
                "; ".join(f"{m} ({', '.join(names)})" for m, names in by_model.items())
            )
    return found


def _draw_sets(sets: Sequence[Trained]) -> str:
    head = ["Set", "Examples", "Modality", "Language", "Licence", "Personal data", "Collected"]
    return "\n".join(table_lines(head, map(_build_set_row, sets), "lr"))


def _build_set_row(dataset: Trained) -> list[str]:
    origin, rows = dataset.origin, dataset.rows
    whole = f" of {dataset.whole:,}" if dataset.whole not in (None, rows) else ""
    return [
        web_link(dataset.name, origin.url),
        _NOT_STATED if rows is None else f"{rows:,}{whole}",
        ", ".join(_list_modalities(dataset)),
        dataset.language or _NOT_STATED,
        origin.licence or _NOT_STATED,
        _show_flag(origin.personal_data) or _NOT_STATED,
        origin.collected or _NOT_STATED,
    ]


def _build_model_row(model: Parent) -> list[str]:
    return [
        web_link(shown_name(model.name), model.link),
        model.revision or _NOT_STATED,
        model.licence or _NOT_STATED,
        ", ".join(model.datasets) or "unknown",
    ]


def _draw_items(items: Mapping[str, str]) -> str:
    return "\n".join(f"- {title}: {text}" for title, text in items.items())

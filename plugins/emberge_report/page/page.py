"""Page of a report: one HTML file that loads no other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from emberge.documents import Page
from emberge.evaluating import MEANS, Scores
from emberge.wording import count_noun

from emberge_report.charts.markup import Child, Markup, join, tag
from emberge_report.charts.svg import NEUTRAL, MarkerStyle, looks
from emberge_report.conclusions import conclusions
from emberge_report.page.data_section import data_section
from emberge_report.page.figure_data import figure_data
from emberge_report.page.figures import figure_of, figure_section
from emberge_report.page.model_section import (
    distance_section,
    merge_section,
    training_section,
)
from emberge_report.page.score_section import score_section
from emberge_report.page.tables import duration, fact, left, plain, points, table, warning
from emberge_report.report_data import ReportData

Section = tuple[str, str, Markup]


def page(report: ReportData) -> str:
    """Return the HTML of a report, which is well-formed XML too."""
    looks_by_name = _choose_looks(report)
    sections = list(_draw_sections(report, looks_by_name))
    body = tag(
        "main",
        tag(
            "header",
            tag("h1", report.title),
            tag("p", _write_subtitle(report)),
            tag(
                "nav",
                [
                    tag("a", title.partition(" from ")[0], href=f"#{key}")
                    for key, title, _ in sections
                ],
            ),
        ),
        _draw_facts(report),
        _draw_summary(report),
        [tag("section", tag("h2", title), content, id=key) for key, title, content in sections],
        tag("footer", _draw_footer(report)),
    )
    return document(report.title, body)


def _choose_looks(report: ReportData) -> dict[str, MarkerStyle]:
    """Return a marker style for each model; merges come first, as the first colours are the strongest."""
    model_groups = (*report.merges, *report.trained, *report.choices)
    looks_by_model = dict(looks([m.name for m in (*model_groups, *report.models)]))
    sizes = [
        (name, at) for _, s in report.scores for name in looks_by_model for at in s.at_sizes(name)
    ]
    looks_by_model |= {at: looks_by_model[name] for name, at in sizes}
    look_by_name = {name: NEUTRAL for _, scores in report.scores for name in scores.models}
    arms = [
        arm
        for _, scores in report.scores
        for arm in (scores.pooled.models if scores.pooled else ())
        if scores.pooled and set(scores.pooled.members_of(arm)) & looks_by_model.keys()
    ]
    return look_by_name | dict(looks(arms)) | looks_by_model


def _draw_sections(report: ReportData, looks_by_name: dict[str, MarkerStyle]) -> Iterator[Section]:
    for i, (name, scores) in enumerate(report.scores):
        ending = "" if len(report.scores) == 1 else f": {name}"
        merge_parents = _map_merge_parents(report)
        yield f"scores-{i}", f"Scores{ending}", score_section(scores, looks_by_name, merge_parents)
    for i, (name, figures) in enumerate(report.figures):
        yield f"figures-{i}", f"What {name} found", figure_section(figures)
    if report.data:
        yield "data", "Data", data_section(report.data)
    if report.trained:
        yield "trainings", "Trainings", training_section(report, looks_by_name)
    if report.merges:
        yield "merges", "Merges", merge_section(report, looks_by_name)
    if report.models:
        title = f"Distance from {report.base}" if report.base else "Distance from the base"
        yield "distances", title, distance_section(report, looks_by_name)
    yield "run", "What was run", _draw_run(report)


def _map_merge_parents(report: ReportData) -> Mapping[str, Sequence[str]]:
    """Return the parents of each merge."""
    return {merge.name: merge.parents for merge in report.merges}


def _write_subtitle(report: ReportData) -> str:
    groups = ((report.trained, "training"), (report.choices, "choice"), (report.merges, "merge"))
    parts = [(len(models), noun) for models, noun in groups]
    tasks = sum(len(scores.tasks) for _, scores in report.scores)
    parts.append((tasks, "task"))
    return (
        ", ".join(count_noun(count, noun) for count, noun in parts if count) or "No model was made."
    )


def _draw_facts(report: ReportData) -> Markup | None:
    score_facts = [fact_ for _, scores in report.scores[:1] for fact_ in _draw_score_facts(scores)]
    seconds = [model.seconds for model in report.models if model.seconds is not None]
    if seconds:
        score_facts.append(fact(duration(sum(seconds)), "spent on training and merging"))
    return tag("div", score_facts, class_="facts") if score_facts else None


def _draw_score_facts(scores: Scores) -> Iterator[Markup]:
    scores = scores.pooled or scores
    word = "lowest" if scores.less else "highest"
    words = {"in": f"{word} in-domain mean", "out": f"{word} out-of-domain mean"}
    for on in scores.headlines():
        best = scores.best(on)
        if best is None:
            continue
        names = [m for m in scores.models if scores.value(m, on) == best]
        title = words.get(on, f"{word} {MEANS.get(on, on)}")
        yield fact(points(best, scores.less), f"{title}: {', '.join(names)}")


def _draw_summary(report: ReportData) -> Markup:
    sentences: list[Child] = []
    for _, scores in report.scores:
        sentences += conclusions(scores, _map_merge_parents(report))
    listed = (
        tag("ul", [tag("li", sentence) for sentence in sentences], class_="findings")
        if sentences
        else None
    )
    warning_items = [warning(tag("b", step), ": ", text) for step, text in report.warnings]
    return tag("div", listed, warning_items)


def _draw_run(report: ReportData) -> Markup:
    steps = [
        [
            tag("th", done.name, scope="row"),
            tag("td", done.component, class_="words"),
            tag("td", duration(done.seconds)),
            tag("td", tag("code", done.fingerprint[:8]) if done.fingerprint else "–"),
        ]
        for done in report.done
    ]
    facts = [
        [tag("th", key.replace("_", " "), scope="row"), tag("td", plain(value), class_="words")]
        for key, value in {**report.provenance, **_read_versions(report)}.items()
        if key not in _OF_THE_REPORT
    ]
    recipe = (tag("h3", "The recipe"), tag("pre", tag("code", report.recipe)))
    return tag(
        "div",
        table(["Step", left("Kind"), "Time", "Fingerprint"], steps) if steps else None,
        tag("h3", "Seed and versions"),
        tag("div", table(["", left("Value")], facts), class_="narrow") if facts else None,
        recipe if report.recipe else None,
    )


# Keys of a report's own provenance that concern the report alone.
_OF_THE_REPORT = {"step", "kind", "fingerprint", "plugins", "versions"}


def _read_versions(report: ReportData) -> Mapping[str, Any]:
    versions = report.provenance.get("versions")
    return versions if isinstance(versions, Mapping) else {}


def _draw_footer(report: ReportData) -> Markup:
    version = _read_versions(report).get("emberge")
    program = f"emberge {version}" if isinstance(version, str) else "emberge"
    seeds = any(scores.pooled for _, scores in report.scores)
    runs = (
        "Where a training was repeated with other seeds, the intervals above cover them; all others are "
        "single runs, which another seed would score otherwise."
        if seeds
        else "All trainings here are single runs: another seed gives other scores, and the intervals above "
        "do not cover that."
    )
    return join(
        f"Written by {program} from what the steps left; this page loads nothing from anywhere. {runs}"
    )


def document(title: str, body: Markup) -> str:
    """Return a complete HTML file that is also well-formed XML and loads no other file."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", _read_style()),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _read_style() -> Markup:
    text = files("emberge_report.page").joinpath("style.css").read_text(encoding="utf-8")
    return Markup(text)


def figure_page(page: Page) -> str:
    """Return the HTML of a page with notes followed by figures.

    Raises:
        DataError: if a figure is invalid.
    """
    figures = [figure_of(figure) for figure in figure_data(page.title, page.figures)]
    body = tag(
        "main",
        tag("header", tag("h1", page.title)),
        tag("div", [warning(note) for note in page.notes]),
        tag("section", figure_section(figures)),
        tag("footer", "Written by emberge; this page loads nothing from anywhere."),
    )
    return document(page.title, body)

"""Page of a report: one file, nothing loaded from anywhere."""

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


def page(story: ReportData) -> str:
    """Return the HTML of a report, which is well-formed XML too."""
    chosen = _choose_looks(story)
    sections = list(_draw_sections(story, chosen))
    body = tag(
        "main",
        tag(
            "header",
            tag("h1", story.title),
            tag("p", _write_subtitle(story)),
            tag(
                "nav",
                [
                    tag("a", title.partition(" from ")[0], href=f"#{key}")
                    for key, title, _ in sections
                ],
            ),
        ),
        _draw_facts(story),
        _draw_summary(story),
        [tag("section", tag("h2", title), content, id=key) for key, title, content in sections],
        tag("footer", _draw_footer(story)),
    )
    return document(story.title, body)


def _choose_looks(story: ReportData) -> dict[str, MarkerStyle]:
    """Return a look for each model; merges come first, so that they have the strongest colours."""
    first = (*story.merges, *story.trained, *story.choices)
    made = dict(looks([m.name for m in (*first, *story.made)]))
    sizes = [(name, at) for _, s in story.scores for name in made for at in s.at_sizes(name)]
    made |= {at: made[name] for name, at in sizes}
    scored = {name: NEUTRAL for _, scores in story.scores for name in scores.models}
    arms = [
        arm
        for _, scores in story.scores
        for arm in (scores.pooled.models if scores.pooled else ())
        if scores.pooled and set(scores.pooled.members_of(arm)) & made.keys()
    ]
    return scored | dict(looks(arms)) | made


def _draw_sections(story: ReportData, chosen: dict[str, MarkerStyle]) -> Iterator[Section]:
    for i, (name, scores) in enumerate(story.scores):
        title = "Scores" if len(story.scores) == 1 else f"Scores: {name}"
        yield f"scores-{i}", title, score_section(scores, chosen, _parents_by_merge(story))
    for i, (name, figures) in enumerate(story.figures):
        yield f"figures-{i}", f"What {name} found", figure_section(figures)
    if story.data:
        yield "data", "Data", data_section(story.data)
    if story.trained:
        yield "trainings", "Trainings", training_section(story, chosen)
    if story.merges:
        yield "merges", "Merges", merge_section(story, chosen)
    if story.made:
        title = f"Distance from {story.base}" if story.base else "Distance from the base"
        yield "distances", title, distance_section(story, chosen)
    yield "run", "What was run", _draw_run(story)


def _parents_by_merge(story: ReportData) -> Mapping[str, Sequence[str]]:
    """Return the parents of each merge."""
    return {made.name: made.parents for made in story.merges}


def _write_subtitle(story: ReportData) -> str:
    made = ((story.trained, "training"), (story.choices, "choice"), (story.merges, "merge"))
    parts = [(len(models), noun) for models, noun in made]
    tasks = sum(len(scores.tasks) for _, scores in story.scores)
    parts.append((tasks, "task"))
    return (
        ", ".join(count_noun(count, noun) for count, noun in parts if count) or "No model was made."
    )


def _draw_facts(story: ReportData) -> Markup | None:
    shown = [fact_ for _, scores in story.scores[:1] for fact_ in _draw_score_facts(scores)]
    seconds = [made.seconds for made in story.made if made.seconds is not None]
    if seconds:
        shown.append(fact(duration(sum(seconds)), "spent on training and merging"))
    return tag("div", shown, class_="facts") if shown else None


def _draw_score_facts(scores: Scores) -> Iterator[Markup]:
    scores = scores.pooled or scores
    word = "lowest" if scores.less else "highest"
    words = {"in": f"{word} in-domain mean", "out": f"{word} out-of-domain mean"}
    for on in scores.headlines():
        best = scores.best(on)
        if best is None:
            continue
        names = [m for m in scores.made if scores.value(m, on) == best]
        title = words.get(on, f"{word} {MEANS.get(on, on)}")
        yield fact(points(best, scores.less), f"{title}: {', '.join(names)}")


def _draw_summary(story: ReportData) -> Markup:
    sentences: list[Child] = []
    for _, scores in story.scores:
        sentences += conclusions(scores, _parents_by_merge(story))
    listed = (
        tag("ul", [tag("li", one) for one in sentences], class_="findings") if sentences else None
    )
    warned = [warning(tag("b", step), ": ", text) for step, text in story.warnings]
    return tag("div", listed, warned)


def _draw_run(story: ReportData) -> Markup:
    steps = [
        [
            tag("th", done.name, scope="row"),
            tag("td", done.component, class_="words"),
            tag("td", duration(done.seconds)),
            tag("td", tag("code", done.fingerprint[:8]) if done.fingerprint else "–"),
        ]
        for done in story.done
    ]
    facts = [
        [tag("th", key.replace("_", " "), scope="row"), tag("td", plain(value), class_="words")]
        for key, value in {**story.provenance, **_read_versions(story)}.items()
        if key not in _OF_THE_REPORT
    ]
    recipe = (tag("h3", "The recipe"), tag("pre", tag("code", story.recipe)))
    return tag(
        "div",
        table(["Step", left("Kind"), "Time", "Fingerprint"], steps) if steps else None,
        tag("h3", "Seed and versions"),
        tag("div", table(["", left("Value")], facts), class_="narrow") if facts else None,
        recipe if story.recipe else None,
    )


# Keys of a report's own provenance that concern the report alone.
_OF_THE_REPORT = {"step", "kind", "fingerprint", "plugins", "versions"}


def _read_versions(story: ReportData) -> Mapping[str, Any]:
    found = story.provenance.get("versions")
    return found if isinstance(found, Mapping) else {}


def _draw_footer(story: ReportData) -> Markup:
    version = _read_versions(story).get("emberge")
    who = f"emberge {version}" if isinstance(version, str) else "emberge"
    seeds = any(scores.pooled for _, scores in story.scores)
    runs = (
        "Where a training was repeated with other seeds, the intervals above cover them; all others are "
        "single runs, which another seed would score otherwise."
        if seeds
        else "All trainings here are single runs: another seed gives other scores, and the intervals above "
        "do not cover that."
    )
    return join(
        f"Written by {who} from what the steps left; this page loads nothing from anywhere. {runs}"
    )


def document(title: str, body: Markup) -> str:
    """Return a page as a whole file, which is well-formed XML too and loads nothing from anywhere."""
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
    """Return a page of figures below its notes.

    Raises:
        DataError: for what is no figure.
    """
    drawn = [figure_of(one) for one in figure_data(page.title, page.figures)]
    body = tag(
        "main",
        tag("header", tag("h1", page.title)),
        tag("div", [warning(note) for note in page.notes]),
        tag("section", figure_section(drawn)),
        tag("footer", "Written by emberge; this page loads nothing from anywhere."),
    )
    return document(page.title, body)

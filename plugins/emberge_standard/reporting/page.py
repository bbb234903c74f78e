"""The whole page of a report: one file, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from emberge_standard.reporting.markup import Child, Markup, join, tag
from emberge_standard.reporting.marks import NEUTRAL, Look, looks
from emberge_standard.reporting.model_section import (
    distance_section,
    merge_section,
    training_section,
)
from emberge_standard.reporting.score_section import findings, score_section
from emberge_standard.reporting.scores import Scores
from emberge_standard.reporting.story import Story
from emberge_standard.reporting.tables import duration, fact, plain, points, table, warning

__all__ = ["page"]

Section = tuple[str, str, Markup]


def page(story: Story) -> str:
    """The HTML of a story, which is well-formed XML too."""
    chosen = _looks(story)
    sections = list(_sections(story, chosen))
    body = tag(
        "main",
        tag(
            "header",
            tag("h1", story.title),
            tag("p", _subtitle(story)),
            tag("nav", [tag("a", title, href=f"#{key}") for key, title, _ in sections]),
        ),
        _facts(story),
        _summary(story),
        [tag("section", tag("h2", title), content, id=key) for key, title, content in sections],
        tag("footer", _made_by(story)),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", story.title),
        tag("style", _style()),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _style() -> Markup:
    text = files("emberge_standard.reporting").joinpath("style.css").read_text(encoding="utf-8")
    return Markup(text)


def _looks(story: Story) -> dict[str, Look]:
    """Merges come first, so that what a reader looks for has the strongest colour."""
    made = looks([*(m.name for m in story.merges), *(m.name for m in story.trained)])
    return {name: NEUTRAL for _, scores in story.scores for name in scores.models} | dict(made)


def _sections(story: Story, chosen: dict[str, Look]) -> Iterator[Section]:
    for i, (name, scores) in enumerate(story.scores):
        title = "Scores" if len(story.scores) == 1 else f"Scores: {name}"
        yield f"scores-{i}", title, score_section(scores, chosen)
    if story.trained:
        yield "trainings", "Trainings", training_section(story, chosen)
    if story.merges:
        yield "merges", "Merges", merge_section(story, chosen)
    if story.made:
        title = f"Distance from {story.base}" if story.base else "Distance from the base"
        yield "distances", title, distance_section(story, chosen)
    yield "run", "What was run", _run(story)


def _subtitle(story: Story) -> str:
    trained, merged = len(story.trained), len(story.merges)
    parts = [_count(trained, "training"), _count(merged, "merge")]
    tasks = sum(len(scores.tasks) for _, scores in story.scores)
    parts.append(_count(tasks, "task"))
    return ", ".join(part for part in parts if part) or "No model was made."


def _count(number: int, word: str) -> str:
    return "" if not number else f"{number} {word}{'' if number == 1 else 's'}"


def _facts(story: Story) -> Markup | None:
    shown = [fact_ for _, scores in story.scores[:1] for fact_ in _score_facts(scores)]
    seconds = [made.details.get("seconds") for made in story.made]
    known = [s for s in seconds if isinstance(s, int | float)]
    if known:
        shown.append(fact(duration(sum(known)), "spent on training and merging"))
    return tag("div", shown, class_="facts") if shown else None


def _score_facts(scores: Scores) -> Iterator[Markup]:
    columns = scores.mean_columns() if len(scores.tasks) > 1 else scores.columns()
    words = {"in": "highest in-domain mean", "out": "highest out-of-domain mean"}
    chosen = [c for c in columns if c in words] or list(columns[:1])
    for on in chosen:
        best = scores.best(on)
        if best is None:
            continue
        names = [m for m in scores.models if scores.value(m, on) == best]
        yield fact(points(best), f"{words.get(on, 'highest score')}: {', '.join(names)}")


def _summary(story: Story) -> Markup:
    said: list[Child] = []
    merged = [made.name for made in story.merges]
    for _, scores in story.scores:
        said += findings(scores, merged)
    warned = [
        warning(tag("b", step), ": ", text) for step, text in story.warnings
    ]
    return tag("div", tag("ul", [tag("li", one) for one in said], class_="findings") if said else None, warned)


def _run(story: Story) -> Markup:
    rows = [
        [tag("th", key.replace("_", " "), scope="row"), tag("td", plain(value), class_="words")]
        for key, value in story.provenance.items()
        if key != "recipe_text"
    ]
    recipe = (
        (tag("h3", "The recipe"), tag("pre", tag("code", story.recipe))) if story.recipe else None
    )
    return tag("div", table(["", tag("span", "Value", class_="left")], rows) if rows else None, recipe)


def _made_by(story: Story) -> Markup:
    version = story.provenance.get("emberge")
    words = f"Written by emberge {version}." if isinstance(version, str) else "Written by emberge."
    return join((words, " Scores come from the evaluator's own code; nothing on this page was rounded before it was compared."))

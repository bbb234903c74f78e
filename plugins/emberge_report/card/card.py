"""Model card in the format of the Hugging Face hub, from what the run left and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberge.evaluating import Scores
from emberge.recipes import Parent, Trained
from emberge.wording import Markdown, code_span, prose, table_lines, web_link

from emberge_report.card.card_contamination import Contamination, contamination_lines
from emberge_report.card.card_scores import forgetting_lines, results_of, score_lines
from emberge_report.card.card_text import usage, yaml_block
from emberge_report.model_facts import Anatomy
from emberge_report.page.cost import describe_cost
from emberge_report.weights_by_layer import COMPUTED, weights_by_layer

if TYPE_CHECKING:
    from emberge import Artifact

__all__ = [
    "Facts",
    "Origin",
    "cost_lines",
    "licence_lines",
    "model_card",
    "parent_lines",
    "provenance_lines",
    "weight_lines",
]

UNKNOWN = "unknown"
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")
_MEDIA = {"image": "images", "audio": "sound"}
# Details of a step that are elsewhere in the card or help no reader.
_ELSEWHERE = {
    *(
        "base",
        "base_reference",
        "base_fingerprint",
        "made_by",
        "weights",
        "models",
        "datasets",
        "seconds",
        "strategy",
        "seed",
        "table",
    ),
    *("loss_curve", "losses", "checkpoints", "tensors", "trained", "training_cost"),
    *("cpu_seconds", "weights_by_layer", "figures"),
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a model: the step that made it, with versions and hashes."""

    component: str = ""
    fingerprint: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    seed: Any = None
    recipe_hash: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts that a card is made of.

    `roots` are the models outside the run that it goes back to, `data` all that it and its parents learned
    from, `scores` evaluations of exactly these weights, `contamination` what of tests that data had.
    """

    name: str
    artifact: Artifact
    anatomy: Anatomy
    parents: tuple[Parent, ...] = ()
    roots: tuple[Parent, ...] = ()
    data: tuple[Trained, ...] = ()
    scores: tuple[Scores, ...] = ()
    contamination: tuple[Contamination, ...] = ()
    origin: Origin = Origin()

    @property
    def merged(self) -> bool:
        """Flag of a model that a merge made."""
        return "strategy" in self.artifact.details

    @property
    def chosen(self) -> bool:
        """Flag of a model that was chosen from others."""
        return "chosen_because" in self.artifact.details

    @property
    def made_by(self) -> str:
        """Words for a change without training, such as "giving rotary positions to"; "" for other ways."""
        return str(self.artifact.details.get("made_by", ""))

    @property
    def sources(self) -> tuple[Parent | Trained, ...]:
        """Models and data whose licences count."""
        found: list[Parent | Trained] = [*self.roots, *self.data]
        return tuple(found)

    @property
    def licence(self) -> str | None:
        """Licence that all ancestors and all data state; None if any states none or another."""
        stated = {one.licence for one in self.sources}
        return stated.pop() if len(stated) == 1 else None


def model_card(facts: Facts) -> str:
    """Return the card, front matter and text."""
    # The class of whole cards would bring all that the hub is called with.
    from huggingface_hub.repocard_data import ModelCardData

    bases = list(dict.fromkeys(base for root in facts.roots for base in root.bases))
    languages = list(dict.fromkeys(lang for root in facts.roots for lang in root.languages))
    results = [result for name, scores in _scored(facts) for result in results_of(name, scores)]
    data = ModelCardData(
        model_name=facts.name,
        base_model=bases or None,
        language=languages or None,
        license=facts.licence.lower() if facts.licence and _known(facts.licence) else None,
        library_name="sentence-transformers",
        pipeline_tag=facts.anatomy.purpose.pipeline,
        tags=_tags(facts),
        eval_results=results or None,
    )
    if bases:
        data["base_model_relation"] = "merge" if facts.merged else "finetune"
    if not results:
        data.pop("model_name")
    body = "\n".join(line for section in _sections(facts) for line in (*section, ""))
    return f"---\n{data.to_yaml()}\n---\n\n{body.rstrip()}\n"


def _scored(facts: Facts) -> Iterator[tuple[str, Scores]]:
    """Yield each evaluation with the model's name in it, once for each size of embeddings."""
    for scores in facts.scores:
        yield from ((name, scores) for name in scores.at_sizes(facts.name))


def _known(licence: str) -> bool:
    """Return whether a licence has the form of an identifier, as the front matter requires."""
    named = _IDENTIFIER.fullmatch(licence) is not None
    return named and licence.lower() not in (UNKNOWN, "other")


def _tags(facts: Facts) -> list[str]:
    own = ["merge"] if facts.merged else []
    return ["sentence-transformers", *facts.anatomy.purpose.tags, "emberge", *own]


def _sections(facts: Facts) -> Iterator[Iterable[str]]:
    yield [f"# {prose(facts.name)}"]
    yield [_opening(facts)]
    yield from filter(None, (forgetting_lines(name, scores) for name, scores in _scored(facts)))
    yield usage(facts.name, facts.anatomy)
    yield from (score_lines(name, scores) for name, scores in _scored(facts))
    yield parent_lines(facts)
    yield _method(facts)
    if facts.data or facts.artifact.size is not None:
        yield _data(facts)
    yield contamination_lines(facts.contamination)
    yield licence_lines(facts)
    yield _limits(facts)
    yield provenance_lines(facts)


def _opening(facts: Facts) -> str:
    how = (
        "merging"
        if facts.merged
        else "choosing"
        if facts.chosen
        else prose(facts.made_by) or "training"
    )
    count = len([p for p in facts.parents if p.weight is not None or not facts.merged])
    what = f"{count} models" if facts.merged and count else prose(_first(facts.parents))
    dimension = facts.anatomy.dimension
    size = f"{dimension} numbers" if dimension else "numbers"
    purpose = facts.anatomy.purpose
    does = purpose.does if purpose.lines else f"It turns a text into {size}; {purpose.does}."
    noun = f"A {purpose.noun}"
    others = [_MEDIA[kind] for kind in facts.anatomy.reads if kind in _MEDIA]
    if others:
        noun = f"An embedding model for {' and '.join(['text', *others])}"
        does = f"It turns each of them, or several together, into {size}; like things get like numbers."
    return f"{noun}, made with emberge by {how} {what}. {does}"


def _first(parents: Sequence[Parent]) -> str:
    return parents[0].name.removeprefix("$") if parents else "another model"


def parent_lines(facts: Facts) -> list[str]:
    """Return lines on the model's parents, with weights, revisions and licences."""
    if not facts.parents:
        return []
    made = facts.chosen or facts.made_by
    title = "## Merged from" if facts.merged else "## Made from" if made else "## Trained from"
    weighted = any(parent.weight is not None for parent in facts.parents)
    head = ["Model", *(["Weight"] if weighted else []), "Revision", "Licence"]
    rows = [
        [
            _linked(parent),
            *([_weight(parent.weight)] if weighted else []),
            parent.revision or "–",
            "see below" if parent.step else parent.licence or UNKNOWN,
        ]
        for parent in facts.parents
    ]
    lines = [title, "", *table_lines(head, rows)]
    if any(parent.step for parent in facts.parents) and facts.roots:
        back = ", ".join(f"{_linked(r)} ({prose(r.licence or UNKNOWN)})" for r in facts.roots)
        lines += ["", f"Those marked as steps go back to {back}."]
    return lines


def _linked(parent: Parent) -> Markdown:
    name = parent.name.removeprefix("$")
    if parent.link or not parent.step:
        return web_link(name, parent.link)
    return prose(f"{name} (a step of the same run)")


def _weight(weight: Any) -> str:
    if isinstance(weight, int | float) and not isinstance(weight, bool):
        return f"{weight:.4f}".rstrip("0").rstrip(".") or "0"
    return "base" if weight is None else "varies by tensor or layer"


def _method(facts: Facts) -> list[str]:
    details = facts.artifact.details
    rest = {key: value for key, value in details.items() if key not in _ELSEWHERE}
    if facts.merged:
        lines = [
            "## How it was merged",
            "",
            *yaml_block({"strategy": _single(details["strategy"]), **rest}),
            *_tensors(details.get("tensors")),
            *weight_lines(facts),
        ]
    else:
        way = "chosen" if facts.chosen else "made" if facts.made_by else "trained"
        lines = [f"## How it was {way}", "", *yaml_block(rest)] if rest else []
    return [*lines, *_warnings(facts.artifact.warnings)]


def weight_lines(facts: Facts) -> list[str]:
    """Return a table of the weights that a merge's strategy computed for each layer."""
    found = weights_by_layer(facts.name, facts.artifact.details)
    if found is None or found.table is None:
        return []
    head = found.table.head
    rows = [["–" if cell is None else str(cell) for cell in row] for row in found.table.rows]
    return ["", f"Weights by layer. {COMPUTED}", "", *table_lines(head, rows)]


def _tensors(counts: Any) -> list[str]:
    """Return how many tensors were merged and copied, in words; a training has none."""
    if not isinstance(counts, Mapping):
        return []
    ways = [prose(f"{count} {way}") for way, count in counts.items() if count]
    return ["", f"Tensors: {', '.join(ways)}."] if ways else []


def _single(value: Any) -> Any:
    """Return a chain of one link as that link, as a recipe may write it."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _warnings(warnings: Sequence[str]) -> list[str]:
    return (
        ["", "What the run warned about:", "", *(f"- {prose(w)}" for w in warnings)]
        if warnings
        else []
    )


def _data(facts: Facts) -> list[str]:
    lines = ["## Training data", ""]
    if facts.data:
        rows = [
            [one.name, one.task or "–", _rows(one), one.licence or UNKNOWN] for one in facts.data
        ]
        lines += [*table_lines(["Data set", "Task", "Examples", "Licence"], rows), ""]
    if facts.merged and facts.artifact.size is not None:
        lines.append(
            f"Its parents were trained on {facts.artifact.size:,} examples, each parent's counted by itself; "
            "the table shows the largest share that one of them saw."
        )
    lines += cost_lines(facts)
    return [*lines, "The cards of the models it goes back to name what those were trained on."]


def cost_lines(facts: Facts) -> list[str]:
    """Return lines on the cost of the trainings behind a merge."""
    sentence = describe_cost(facts.artifact.details)
    return [prose(sentence)] if sentence else []


def _rows(data: Trained) -> str:
    if data.rows is None:
        return UNKNOWN
    whole = f" of {data.whole:,}" if data.whole not in (None, data.rows) else ""
    return f"{data.rows:,}{whole}"


def licence_lines(facts: Facts) -> list[str]:
    """Return lines on the licences that ancestors and data state."""
    stated = [f"{prose(one.name)}: {prose(one.licence)}" for one in facts.sources if one.licence]
    silent = [prose(one.name) for one in facts.sources if not one.licence]
    lines = ["## Licence", ""]
    lines.append(f"{'; '.join(stated)}." if stated else "No ancestor and no data set states one.")
    if silent:
        lines.append(f"Unknown for {', '.join(silent)}.")
    lines.append(
        "This was gathered from cards and catalogues and is no legal advice: before you share the model, "
        "check the licences of all parents and of all data yourself."
    )
    return lines


def _limits(facts: Facts) -> list[str]:
    longest = facts.anatomy.max_length
    lines = ["## Limits", ""]
    if longest:
        lines.append(f"- Texts are cut after {longest} tokens.")
    lines.append("- It keeps the biases and gaps of its parents and of their data.")
    if facts.scores:
        lines.append(
            "- Scores are of single runs on the tasks above; other data, languages and domains may differ."
        )
    else:
        lines.append("- It has not been evaluated in this run.")
    return lines


def provenance_lines(facts: Facts) -> list[str]:
    """Return lines with versions, seed and hashes, which make the model again."""
    origin = facts.origin
    rows = [[name, code_span(version)] for name, version in origin.versions]
    rows += [["step", code_span(f"{facts.name} ({origin.component})")]] if origin.component else []
    rows += [["seed", code_span(str(origin.seed))]] if origin.seed is not None else []
    rows += [["fingerprint", code_span(origin.fingerprint)]] if origin.fingerprint else []
    rows += [["recipe (SHA-256)", code_span(origin.recipe_hash)]] if origin.recipe_hash else []
    if not rows:
        return []
    return [
        "## How to make it again",
        "",
        "The same recipe with the same inputs.",
        "",
        *table_lines(["", ""], rows),
    ]

"""Content of a model card, gathered from the run's files, for whole models and adapters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from emberge.documents import NAME_REMARK, BulletList, Card, CodeLines, Section, TextTable
from emberge.evaluating import Scores
from emberge.results import Parent, Trained
from emberge.wording import Markdown, code_span, hide_places, prose, web_link

from emberge_report.card.card_scores import forgetting_sentence, results_of, score_section
from emberge_report.card.card_text import options_as_yaml, python_text, usage_section
from emberge_report.model_facts import Anatomy
from emberge_report.page.cost import describe_cost

if TYPE_CHECKING:
    from emberge import Artifact


UNKNOWN = "unknown"
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")
_MEDIA = {"image": "images", "audio": "sound"}
# Tensors of an adapter whose errors are shown, the largest first.
_WORST = 10
# Details of a step that are elsewhere in the card or help no reader.
_ELSEWHERE = {
    *("base", "base_reference", "base_fingerprint", "made_by", "weights", "models", "datasets"),
    *("seconds", "strategy", "seed", "table", "loss_curve", "losses", "checkpoints", "tensors"),
    *("trained", "training_cost", "cpu_seconds", "weights_by_layer", "figures", "adapter"),
}


@dataclass(frozen=True)
class CardFacts:
    """Facts of a model for its card.

    `name` is the step's name. `roots` are the ancestors outside the run, `data` all data that the model and
    its parents were trained on, `scores` the evaluations of exactly these weights, and `record` is the
    content of artifact.json.
    """

    name: str
    artifact: Artifact
    anatomy: Anatomy
    parents: tuple[Parent, ...] = ()
    roots: tuple[Parent, ...] = ()
    data: tuple[Trained, ...] = ()
    scores: tuple[Scores, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def adapter(self) -> Mapping[str, Any] | None:
        """Ranks and truncation errors of an adapter; None for a whole model."""
        details = self.artifact.details.get("adapter")
        return details if isinstance(details, Mapping) else None

    @property
    def bases(self) -> list[str]:
        """Hub ids of the models that this model was made from."""
        return list(dict.fromkeys(base for root in self.roots for base in root.bases))

    @property
    def merged(self) -> bool:
        """True for a model made by a merge."""
        return "strategy" in self.artifact.details

    @property
    def chosen(self) -> bool:
        """True for a model that was selected from others."""
        return "chosen_because" in self.artifact.details

    @property
    def made_by(self) -> str:
        """Phrase for a change without training, such as "giving rotary positions to"; "" for other models."""
        return str(self.artifact.details.get("made_by", ""))

    @property
    def sources(self) -> tuple[Parent | Trained, ...]:
        """Models and data whose licences apply to the model."""
        return (*self.roots, *self.data)

    @property
    def licence(self) -> str | None:
        """Licence that all ancestors and data share; None if one is missing or different."""
        stated = {source.licence for source in self.sources}
        return stated.pop() if len(stated) == 1 else None

    def list_scored(self) -> Iterator[tuple[str, Scores]]:
        """Yield each evaluation with the model's name in it, once for each size of embeddings."""
        for scores in self.scores:
            yield from ((name, scores) for name in scores.at_sizes(self.name))


def model_card(facts: CardFacts) -> Card:
    """Return the card of a model or an adapter."""
    forgotten = (forgetting_sentence(name, scores) for name, scores in facts.list_scored())
    opening = [_describe_model(facts), *filter(None, forgotten)]
    sections = [section for section in _list_sections(facts) if section is not None]
    return Card(facts.name, opening, sections, _build_front(facts))


def _build_front(facts: CardFacts) -> dict[str, Any]:
    """Return the values of front matter in the hub's form, scores as its `model-index`."""
    # The class of whole cards would bring all that the hub is called with.
    from huggingface_hub.repocard_data import ModelCardData

    purpose, is_adapter = facts.anatomy.purpose, facts.adapter is not None
    languages = list(dict.fromkeys(lang for root in facts.roots for lang in root.languages))
    results = [
        result for name, scores in facts.list_scored() for result in results_of(name, scores)
    ]
    library = "peft" if is_adapter else "sentence-transformers"
    kind_tags = ["lora", "feature-extraction"] if is_adapter else purpose.tags
    data = ModelCardData(
        model_name=facts.name,
        base_model=facts.bases or None,
        language=languages or None,
        license=facts.licence.lower() if facts.licence and _is_known(facts.licence) else None,
        library_name=library,
        pipeline_tag="feature-extraction" if is_adapter else purpose.pipeline,
        tags=[library, *kind_tags, "emberge", *(["merge"] if facts.merged else [])],
        eval_results=results or None,
    )
    if facts.bases:
        relation = "merge" if facts.merged else "finetune"
        data["base_model_relation"] = "adapter" if is_adapter else relation
    if not results:
        data.pop("model_name")
    return dict(data.to_dict())  # type: ignore[no-untyped-call]


def _is_known(licence: str) -> bool:
    """Return whether a licence has the form of an identifier, as the front matter requires."""
    is_identifier = _IDENTIFIER.fullmatch(licence) is not None
    return is_identifier and licence.lower() not in (UNKNOWN, "other")


def _list_sections(facts: CardFacts) -> Iterator[Section | None]:
    if facts.adapter is not None:
        yield _build_adapter_usage(facts)
        yield _build_adapter_content(facts.adapter)
    else:
        yield usage_section(facts.name, facts.anatomy)
    yield from (score_section(name, scores) for name, scores in facts.list_scored())
    yield _build_parent_section(facts)
    yield _build_method_section(facts)
    yield _build_data_section(facts)
    yield _build_licence_section(facts)
    yield _build_limit_section(facts)
    yield _build_provenance_section(facts)


def _describe_model(facts: CardFacts) -> Markdown:
    """Return the sentence on the model's kind and origin."""
    verb = "merging" if facts.merged else "choosing" if facts.chosen else facts.made_by
    # A merge's base has no weight; a model of weight 0 is not in the merge.
    count = sum(p.weight not in (None, 0) for p in facts.parents)
    first = facts.parents[0].name.removeprefix("$") if facts.parents else "another model"
    noun = "models" if facts.adapter is None else "adapters"
    subject = f"{count} {noun}" if facts.merged and count else prose(first)
    origin = f"made with emberge by {prose(verb or 'training')} {subject}"
    details = facts.artifact.details
    if facts.adapter is not None:
        if not facts.merged and "loss_curve" not in details:
            origin = "made with emberge from a fine-tune and its base"
        base = prose(str(details.get("base", "its base")))
        return Markdown(f"A LoRA adapter of {base}, {origin}. It is no model by itself.")
    dimension, purpose = facts.anatomy.dimension, facts.anatomy.purpose
    size = f"{dimension} numbers" if dimension else "numbers"
    sentence = purpose.does if purpose.lines else f"It turns a text into {size}; {purpose.does}."
    noun = f"A {purpose.noun}"
    media_kinds = [_MEDIA[kind] for kind in facts.anatomy.reads if kind in _MEDIA]
    if media_kinds:
        noun = f"An embedding model for {' and '.join(['text', *media_kinds])}"
        sentence = f"It turns each of them, or several together, into {size}; like things get like numbers."
    return Markdown(f"{noun}, {origin}. {sentence}")


def _build_parent_section(facts: CardFacts) -> Section | None:
    """Return the model's parents, with weights, revisions and licences."""
    if not facts.parents:
        return None
    is_derived = facts.chosen or facts.made_by
    title = "Merged from" if facts.merged else "Made from" if is_derived else "Trained from"
    weighted = any(parent.weight is not None for parent in facts.parents)
    head = ["Model", *(["Weight"] if weighted else []), "Revision", "Licence"]
    rows = [
        [
            _link_parent(parent),
            *([_show_weight(parent.weight)] if weighted else []),
            parent.revision or "–",
            "see below" if parent.step else parent.licence or UNKNOWN,
        ]
        for parent in facts.parents
    ]
    passages: list[str | TextTable] = [TextTable(head, rows)]
    if any(parent.step for parent in facts.parents) and facts.roots:
        root_list = ", ".join(
            f"{_link_parent(r)} ({prose(r.licence or UNKNOWN)})" for r in facts.roots
        )
        passages.append(Markdown(f"Those marked as steps go back to {root_list}."))
    return Section(title, passages)


def _link_parent(parent: Parent) -> Markdown:
    name = parent.name.removeprefix("$")
    if parent.link or not parent.step:
        return web_link(name, parent.link)
    return prose(f"{name} (a step of the same run)")


def _show_weight(weight: Any) -> str:
    if isinstance(weight, int | float) and not isinstance(weight, bool):
        return f"{weight:.4f}".rstrip("0").rstrip(".") or "0"
    return "base" if weight is None else "varies by tensor or layer"


def _build_method_section(facts: CardFacts) -> Section | None:
    details = facts.artifact.details
    options = {
        key: value
        for key, value in details.items()
        if key not in _ELSEWHERE and value not in (None, {}, [])
    }
    if facts.merged:
        chain = details["strategy"]
        is_single = isinstance(chain, list) and len(chain) == 1
        options = {"strategy": chain[0] if is_single else chain, **options}
    passages: list[Any] = [options_as_yaml(options)] if options else []
    if isinstance(counts := details.get("tensors"), Mapping):
        ways = [f"{count} {way}" for way, count in counts.items() if count]
        passages += [f"Tensors: {', '.join(ways)}."] if ways else []
    if facts.artifact.warnings:
        passages += ["What the run warned about:", BulletList(facts.artifact.warnings)]
    origins = ("merged", "chosen", "made")
    is_origin = (facts.merged, facts.chosen, bool(facts.made_by))
    origin = next((o for o, true in zip(origins, is_origin, strict=True) if true), "trained")
    return Section(f"How it was {origin}", passages) if passages else None


def _build_data_section(facts: CardFacts) -> Section | None:
    """Return the sets with examples, licence and the models that wrote them; None without any."""
    if not facts.data and facts.artifact.size is None:
        return None
    columns: dict[str, list[str]] = {
        "Data set": [web_link(one.name, one.origin.url) for one in facts.data],
        "Task": [one.task or "–" for one in facts.data],
        "Examples": [_count_rows(one) for one in facts.data],
        "Licence": [one.licence or UNKNOWN for one in facts.data],
        "Written or scored by": [_list_authors(one) for one in facts.data],
    }
    known_columns = {head: cells for head, cells in columns.items() if any(cells)}
    rows = [[cell or UNKNOWN for cell in row] for row in zip(*known_columns.values(), strict=True)]
    passages: list[str | TextTable] = [TextTable([*known_columns], rows)] if facts.data else []
    sentences = []
    if facts.merged and facts.artifact.size is not None:
        sentences.append(
            f"Its parents were trained on {facts.artifact.size:,} examples, each parent's counted by itself; "
            "the table has the most rows that one of their trainings used."
        )
    cost = describe_cost(facts.artifact.details)
    sentences += [cost] if cost else []
    sentences.append("The cards of the models it goes back to name what those were trained on.")
    return Section("Training data", [*passages, " ".join(sentences)])


def _list_authors(data: Trained) -> str:
    models = dict.fromkeys((*data.origin.written_by, *data.origin.scored_by))
    return ", ".join(hide_places(model).removeprefix("$") for model in models)


def _count_rows(data: Trained) -> str:
    if data.rows is None:
        return UNKNOWN
    size_text = f" of {data.whole:,}" if data.whole not in (None, data.rows) else ""
    return f"{data.rows:,}{size_text}"


def _build_licence_section(facts: CardFacts) -> Section:
    """Return the licences that ancestors and data state."""
    stated = [f"{source.name}: {source.licence}" for source in facts.sources if source.licence]
    silent = [source.name for source in facts.sources if not source.licence]
    sentences = [f"{'; '.join(stated)}." if stated else "No ancestor and no data set states one."]
    if silent:
        sentences.append(f"Unknown for {', '.join(silent)}.")
    sentences.append(
        "This was gathered from cards and catalogues and is no legal advice: before you share the model, "
        "check the licences of all parents and of all data yourself."
    )
    return Section("Licence", [" ".join(sentences)])


def _build_limit_section(facts: CardFacts) -> Section:
    max_length = facts.anatomy.max_length
    limits = [f"Texts are cut after {max_length} tokens."] if max_length else []
    limits.append("It keeps the biases and gaps of its parents and of their data.")
    limits.append(
        "Scores are of single runs on the tasks above; other data, languages and domains may differ."
        if facts.scores
        else "It has not been evaluated in this run."
    )
    return Section("Limits", [BulletList(limits)])


def _build_provenance_section(facts: CardFacts) -> Section | None:
    """Return the section with versions, seed and hashes that reproduce the model."""
    record = facts.record
    versions = record.get("versions")
    facts_by_name = dict(versions) if isinstance(versions, Mapping) else {}
    if component := record.get("component"):
        facts_by_name["step"] = f"{facts.name} ({component})"
    facts_by_name |= {
        "seed": facts.artifact.details.get("seed", record.get("seed")),
        "fingerprint": record.get("fingerprint") or None,
        "recipe (SHA-256)": record.get("recipe") or None,
    }
    rows = [
        [name, code_span(str(fact))] for name, fact in facts_by_name.items() if fact is not None
    ]
    if not rows:
        return None
    remark = "The same recipe with the same inputs."
    return Section("How to make it again", [remark, TextTable(["", ""], rows)])


# ── adapters ────────────────────────────────────────────────────────────────────────────────────────


def _build_adapter_usage(facts: CardFacts) -> Section:
    base = str(facts.artifact.details.get("base", "its base"))
    lines = [
        "from peft import PeftModel",
        "from transformers import AutoModel",
        "",
        f"base = AutoModel.from_pretrained({python_text(base)})",
        f"model = PeftModel.from_pretrained(base, {python_text(facts.name)}){NAME_REMARK}",
    ]
    return Section("Use", [CodeLines("\n".join(lines), "python")])


def _build_adapter_content(adapter: Mapping[str, Any]) -> Section:
    ranks, errors = dict(adapter.get("ranks", {})), dict(adapter.get("errors", {}))
    whole = list(adapter.get("whole", ()))
    sentences = []
    if ranks:
        span = sorted({min(ranks.values()), max(ranks.values())})
        sentences.append(f"{len(ranks)} matrices of rank {' to '.join(map(str, span))}.")
    if whole:
        sentences.append(f"{len(whole)} tensors whole, such as {code_span(str(whole[0]))}.")
    passages: list[str | TextTable] = [Markdown(" ".join(sentences))]
    cut = sorted(((e, n) for n, e in errors.items() if e > 0), reverse=True)[:_WORST]
    if cut:
        rows = [[code_span(name), f"{error:.3g}"] for error, name in cut]
        passages.append(TextTable(["Most is left out of (relative error)", "Error"], rows))
    elif errors:  # one that was trained as it is has none: there was nothing to leave out
        passages.append("Nothing is left out: it is exact.")
    return Section("Content", passages)

"""Card of a model or an adapter in the hub's format: front matter, and a template filled with a run's facts.

Every text that is filled in is escaped, unless it is Markdown already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.contracts import MergeDetails, TrainingDetails
from emberge.interpreter import locate_package
from emberge.model_folder import HUB_ID
from emberge.wording import Markdown, count_noun, hide_folders, make_printable, to_markdown
from emberge_hub import find_in_package

from emberge_report.lineage import Parent, TrainingSet, find_chosen_merge, trace_ancestry
from emberge_report.markdown import (
    MODEL_NAME_COMMENT,
    write_code_block,
    write_code_span,
    write_link,
)
from emberge_report.model_facts import Anatomy, read_anatomy

if TYPE_CHECKING:
    from emberge import Artifact
    from huggingface_hub.repocard_data import ModelCardData
    from jinja2 import Environment


UNKNOWN_WORD = "unknown"
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")
_MEDIA = {"image": "images", "audio": "sound"}
# Details of a step that are elsewhere in the card or help no reader.
_HIDDEN_DETAILS = {
    *("weights", "models", "datasets", "examples", "seconds", "cpu_seconds", "strategy", "seed"),
    *("checkpoints", "tensors", "training_cost", "weights_by_layer", "uses_weights"),
}


@dataclass(frozen=True)
class CardFacts:
    """Facts of a model for its card.

    `name` is the step's name. `roots` are the ancestors outside the run, `data` all data that the model and
    its parents were trained on, and `record` is the step's artifact.json. If the step chose a merge,
    `artifact` is the merge's, and `choice` has the step's own details.
    """

    name: str
    artifact: Artifact
    anatomy: Anatomy
    parents: tuple[Parent, ...] = ()
    roots: tuple[Parent, ...] = ()
    data: tuple[TrainingSet, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """Name of the model that this one was made from; "its base" if it is unknown."""
        return hide_folders(self.artifact.base.name) if self.artifact.base else "its base"

    @property
    def sources(self) -> tuple[Parent | TrainingSet, ...]:
        """Models and data whose licences apply to the model."""
        return (*self.roots, *self.data)


def write_card(
    link: Path,
    folder: Path,
    artifact: Artifact,
    record: Mapping[str, Any],
    recipe_folder: Path | None = None,
) -> str:
    """Return the card of the model in `folder`, which a step leaves at `link` in OUT.

    Relative references in the artifact start at `recipe_folder`.
    """
    origin, origin_link = find_chosen_merge(artifact, link, recipe_folder)
    parents, roots, data, inherited = trace_ancestry(origin, origin_link, recipe_folder)
    choice = {} if origin is artifact else artifact.to_record()["details"]
    warnings = tuple(map(hide_folders, (*artifact.warnings, *inherited)))
    facts = CardFacts(
        name=str(record.get("step") or link.name),
        artifact=replace(origin, size=artifact.size, warnings=warnings),
        anatomy=read_anatomy(folder),
        parents=parents,
        roots=roots,
        data=data,
        record=record,
        choice=choice,
    )
    return draw_card(facts)


def draw_card(facts: CardFacts) -> str:
    """Return the card of a model or an adapter."""
    details = facts.artifact.details
    ways = details.tensors if isinstance(details, MergeDetails) else {}
    trainings = (
        [details] if isinstance(details, TrainingDetails) else facts.artifact.trainings.values()
    )
    template = open_templates().get_template("card.md")
    text = template.render(
        card=facts,
        anatomy=facts.anatomy,
        description=_describe_model(facts),
        adapter=facts.artifact.adapter,
        base_code=_write_base(facts.base),
        origin=facts.artifact.origin,
        weighted=any(parent.weight is not None for parent in facts.parents)
        and not (isinstance(details, MergeDetails) and not details.uses_weights),
        options=_write_options(facts),
        seen=sum(one.examples for one in trainings),
        ways=", ".join(f"{count} {way}" for way, count in ways.items() if count),
        made_again=[*_list_provenance(facts)],
    )
    return f"---\n{_build_front(facts).to_yaml()}\n---\n\n{text.strip()}\n"


@cache
def open_templates() -> Environment:
    """Return the templates of cards; what they fill in is escaped, unless it is Markdown already."""
    # ModelCard.from_template escapes nothing, and texts of strangers are filled in here.
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("emberge_report"),
        finalize=lambda value: (
            to_markdown(str(value)) if not isinstance(value, Markdown) else value
        ),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "MODEL_NAME_COMMENT": Markdown(MODEL_NAME_COMMENT),
        "web_link": write_link,
        "code": lambda text, language: Markdown("\n".join(write_code_block(text, language))),
    }
    environment.filters |= {
        "code_span": write_code_span,
        "link": _link_parent,
        "quoted": _quote,
        "raw": Markdown,
        "row_count": _format_row_count,
        "span": _span_ranks,
    }
    return environment


def _build_front(facts: CardFacts) -> ModelCardData:
    """Return the values of front matter in the hub's form."""
    # The class of whole cards would bring all that the hub is called with.
    from huggingface_hub.repocard_data import ModelCardData

    model_kind, is_adapter = facts.anatomy.model_kind, facts.artifact.adapter is not None
    bases = list(dict.fromkeys(base for root in facts.roots for base in root.bases))
    languages = list(dict.fromkeys(lang for root in facts.roots for lang in root.languages))
    licences = {source.licence for source in facts.sources}
    licence = licences.pop() if len(licences) == 1 else None
    library = "peft" if is_adapter else "sentence-transformers"
    kind_tags = ["lora", "feature-extraction"] if is_adapter else model_kind.tags
    is_merge = facts.artifact.origin == "merged"
    relation = "adapter" if is_adapter else "merge" if is_merge else "finetune"
    return ModelCardData(
        base_model=bases or None,
        language=languages or None,
        license=licence.lower() if licence is not None and _is_identifier(licence) else None,
        library_name=library,
        pipeline_tag="feature-extraction" if is_adapter else model_kind.pipeline,
        tags=[library, *kind_tags, "emberge", *(["merge"] if is_merge else [])],
        base_model_relation=relation if bases else None,
    )


def _is_identifier(licence: str) -> bool:
    """Return whether a licence has the form of an identifier, as the front matter requires."""
    has_form = _IDENTIFIER.fullmatch(licence) is not None
    return has_form and licence.lower() not in (UNKNOWN_WORD, "other")


def _describe_model(facts: CardFacts) -> Markdown:
    """Return the sentence on the model's kind and origin."""
    verb = {"merged": "merging", "chosen": "choosing"}.get(
        facts.artifact.origin, facts.artifact.made_by
    )
    is_merge = facts.artifact.origin == "merged"
    # A merge's base has no weight; a model of weight 0 is not in the merge.
    count = sum(p.weight not in (None, 0) for p in facts.parents)
    first = facts.parents[0].name.removeprefix("$") if facts.parents else "another model"
    noun = "model" if facts.artifact.adapter is None else "adapter"
    subject = count_noun(count, noun) if is_merge and count else to_markdown(first)
    origin = f"made with emberge by {to_markdown(verb or 'training')} {subject}"
    if "chosen_from" in facts.choice:
        origin += f", chosen from {count_noun(facts.choice['chosen_from'], 'model')}"
    if facts.artifact.adapter is not None:
        return Markdown(
            f"A LoRA adapter of {to_markdown(facts.base)}, {origin}. It is no model by itself."
        )
    dimension, model_kind = facts.anatomy.dimension, facts.anatomy.model_kind
    size = f"{dimension} numbers" if dimension else "numbers"
    sentence = (
        f"It turns a text into {size}; texts that mean similar things get similar numbers."
        if model_kind.embeds_texts
        else model_kind.sentence
    )
    noun = f"A {model_kind.noun}"
    media_kinds = [_MEDIA[kind] for kind in facts.anatomy.reads if kind in _MEDIA]
    if media_kinds:
        noun = f"An embedding model for {' and '.join(['text', *media_kinds])}"
        sentence = f"It turns each of them, or several together, into {size}; like things get like numbers."
    return Markdown(f"{noun}, {origin}. {sentence}")


def _quote(text: str) -> Markdown:
    """Return text as a Python string literal in one line, which no block of code can end in."""
    return Markdown(make_printable(json.dumps(text, ensure_ascii=False)))


def _write_base(name: str) -> Markdown:
    """Return the code from an adapter's base, as a call's only argument, to the end of the line."""
    module = name.removeprefix("pkg:")
    if module != name and (package := locate_package(module)) is not None:
        folder = find_in_package(module).relative_to(package).as_posix()
        return Markdown(f"str(files({_quote(module)}) / {_quote(folder)}))")
    comment = "" if HUB_ID.fullmatch(name) else "  # the path of the base, or its hub id"
    return Markdown(f"{_quote(name)}){comment}")


def _link_parent(parent: Parent) -> Markdown:
    name = parent.name.removeprefix("$")
    if parent.link or not parent.is_step:
        return write_link(name, parent.link)
    return to_markdown(f"{name} (a step of the same run)")


def _write_options(facts: CardFacts) -> str:
    """Return the options that the model was made with as YAML; "" without any."""
    import yaml

    options = {
        key: value
        for key, value in {**facts.artifact.to_record()["details"], **facts.choice}.items()
        if key not in _HIDDEN_DETAILS and value not in (None, {}, [])
    }
    if isinstance(facts.artifact.details, MergeDetails):
        chain = list(facts.artifact.details.strategy)
        options = {"strategy": chain[0] if len(chain) == 1 else chain, **options}
    # An option has one line, as a recipe may write it (without the braces of the whole mapping), or a block.
    style: Any = {"sort_keys": False, "allow_unicode": True}
    texts = []
    for key, one in hide_folders(options).items():
        line: str = yaml.safe_dump({key: one}, default_flow_style=True, width=10_000, **style)
        is_long = len(line.strip()) > 102
        texts.append(yaml.safe_dump({key: one}, **style) if is_long else line.strip()[1:-1])
    return "\n".join(map(str.rstrip, texts))


def _format_row_count(data: TrainingSet) -> str:
    if data.rows is None:
        return UNKNOWN_WORD
    size_text = f" of {data.whole:,}" if data.whole not in (None, data.rows) else ""
    return f"{data.rows:,}{size_text}"


def _list_provenance(facts: CardFacts) -> Iterator[tuple[str, str]]:
    """Yield versions, seed and hashes that reproduce the model."""
    record = facts.record
    versions, component = record.get("versions"), record.get("component")
    details = facts.artifact.details
    plugins = record.get("plugins")
    named = plugins.items() if isinstance(plugins, Mapping) else ()
    stated = {
        **(versions if isinstance(versions, Mapping) else {}),
        **{f"plugin {name}": text for name, text in named if not str(text).startswith("emberge ")},
        "step": f"{facts.name} ({component})" if component else None,
        "seed": details.seed if isinstance(details, TrainingDetails) else record.get("seed"),
        "fingerprint": record.get("fingerprint") or None,
        "recipe (SHA-256)": record.get("recipe") or None,
    }
    yield from ((key, str(fact)) for key, fact in stated.items() if fact is not None)


def _span_ranks(ranks: Mapping[str, int]) -> str:
    """Return the smallest and the largest rank of an adapter's matrices: `4 to 6`, or `4`."""
    return " to ".join(map(str, sorted({min(ranks.values()), max(ranks.values())})))

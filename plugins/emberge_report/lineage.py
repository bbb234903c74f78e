"""Lineage of a model: its parents with their licences and languages, and all data it was trained on."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from emberge import Artifact, CheckpointError
from emberge.contracts import BaseFacts, DataOrigin, MergeDetails, TrainingDetails
from emberge.model_folder import find_model_name
from emberge.results import ARTIFACT, OutFolder, read_artifact
from emberge_hub import find_in_package

from emberge_report.markdown import read_front_matter, read_licence

CARD_FILE = "README.md"
# Beginnings of references to folders.
_PATH_BEGINNINGS = (".", "/", "~")
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HUB_NAME = re.compile(r"(?:[\w][\w.-]*/)?[\w][\w.-]*")  # names of old models have no owner


@dataclass(frozen=True, slots=True)
class Parent:
    """Model from which another model was made; facts that no file states are empty or None.

    `bases` are the hub ids from which the model descends: its own id if it is on the hub. `reference` is the
    name in a recipe by which the model is found, if it is not `name`.
    """

    name: str
    weight: float | None = None
    revision: str | None = None
    link: str | None = None
    licence: str | None = None
    languages: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    step: bool = False
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """Data set that a model was trained on: the most `rows` that one training used of its `whole` number."""

    name: str
    task: str = ""
    rows: int | None = None
    whole: int | None = None
    origin: DataOrigin = field(default_factory=DataOrigin)

    @property
    def licence(self) -> str | None:
        """Licence that its origin states."""
        return self.origin.licence


class Ancestry(NamedTuple):
    """Ancestry of a model: its parents, its oldest ancestors up to those of known licence, and its data."""

    parents: tuple[Parent, ...]
    roots: tuple[Parent, ...]
    data: tuple[Trained, ...]


def _find_parents(artifact: Artifact, out: Path, origin: Path | None) -> tuple[Parent, ...]:
    """Return the parents of a model that a step in `out` made; `origin` is the folder of its recipe.

    A training's parent is its base; a merge's parents are its models, and its base if it has one. If a parent
    is known only by a folder's name, its reference in the recipe is used to find it.
    """
    details, base = artifact.details, artifact.base or BaseFacts()
    weights: Mapping[str, float | None] = (
        details.weights if isinstance(details, MergeDetails) else dict.fromkeys(artifact.parents)
    )
    named = [base.name if name == base.reference else name for name in (*weights, base.name)]
    return tuple(
        _find_base(name, base.reference, weights.get(name), out, origin)
        if name == base.name and base.reference
        else _find_parent(name, weights.get(name), out, origin)
        for name in dict.fromkeys(filter(None, named))
    )


def _find_base(
    name: str, reference: str, weight: float | None, out: Path, origin: Path | None
) -> Parent:
    parent = _find_parent(reference, weight, out, origin)
    return parent if parent.name == name else replace(parent, name=name, reference=reference)


def _find_parent(text: str, weight: float | None, out: Path, origin: Path | None) -> Parent:
    if not text.startswith(_PATH_BEGINNINGS) and _find_result_link(text, out).is_dir():
        return Parent(text, weight, step=True)
    return _find_model_outside(text, origin, weight)


def _find_model_outside(text: str, origin: Path | None, weight: float | None) -> Parent:
    """Return a model from outside the run by its reference, with the facts of its card.

    Relative paths start at the folder `origin`. The network is not used: the card of a model on a hub is
    known only if it was downloaded before.
    """
    bare, _, adapter = text.removeprefix("$").removeprefix("hf://").partition("+")
    name, _, revision = bare.rpartition("@")
    name = name or bare
    revision = revision if name != revision else ""
    folder = _find_folder(name, revision or None, origin)
    if _HUB_ID.fullmatch(name) and not adapter:
        link = f"https://huggingface.co/{name}" + (f"/tree/{revision}" if revision else "")
        return _add_card(Parent(name, weight, revision or None, link, bases=(name,)), folder)
    shown = _name_path(name, origin) + (f"+{_name_path(adapter, origin)}" if adapter else "")
    reference = text if text.startswith(_PATH_BEGINNINGS) or shown != text else ""
    return _add_card(Parent(shown if reference else text, weight, reference=reference), folder)


def _name_path(text: str, origin: Path | None) -> str:
    """Return the name of a model's folder for readers; other references stay as they are."""
    if not text.startswith(_PATH_BEGINNINGS):
        return text
    folder = Path(os.path.abspath(_resolve(text, origin)))
    name = find_model_name(folder)
    results = read_front_matter(folder).get("model-index") if name == folder.name else None
    first = results[0] if isinstance(results, list) and results else None
    stated = first.get("name") if isinstance(first, Mapping) else None
    return stated if isinstance(stated, str) else name


def _resolve(text: str, origin: Path | None) -> Path:
    """Return the folder that a path in a recipe names; relative paths start at `origin`."""
    return (origin or Path()) / Path(text).expanduser()


def _tell_apart(parents: tuple[Parent, ...]) -> tuple[Parent, ...]:
    """Return the parents with distinct names: folders are put before equal ones, such as checkpoint-100."""
    paths = [[Path(part).parts for part in parent.reference.split("+")] for parent in parents]
    for depth in range(2, 1 + max((len(parts) for path in paths for parts in path), default=0)):
        counts = Counter(parent.name for parent in parents)
        parents = tuple(
            replace(parent, name="+".join("/".join(p[-depth:]).lstrip("/.") for p in path))
            if counts[parent.name] > 1 and parent.reference.startswith(_PATH_BEGINNINGS)
            else parent
            for parent, path in zip(parents, paths, strict=True)
        )
    return parents


def _add_card(parent: Parent, folder: Path | None) -> Parent:
    """Return a parent with the licence and languages of a folder's card; unchanged without a card."""
    if folder is None or not (folder / CARD_FILE).is_file():
        return parent
    card = read_front_matter(folder)
    return replace(
        parent,
        bases=parent.bases or _read_hub_names(card.get("base_model")),
        licence=read_licence(card),
        languages=_read_texts(card.get("language")),
    )


def _find_folder(name: str, revision: str | None, origin: Path | None) -> Path | None:
    """Return the folder of a model outside the run, found without a network."""
    if name.startswith("pkg:"):
        try:
            return find_in_package(name.removeprefix("pkg:"))
        except CheckpointError:
            return None
    if name.startswith(_PATH_BEGINNINGS):
        return _resolve(name, origin)
    if not _HUB_ID.fullmatch(name):
        return None
    from huggingface_hub import try_to_load_from_cache

    card = try_to_load_from_cache(name, CARD_FILE, revision=revision)
    return Path(card).parent if isinstance(card, str) else None


def _read_texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _read_hub_names(value: Any) -> tuple[str, ...]:
    """Return the names of models or data on a hub; other values, which a card may have, are left out."""
    return tuple(name for name in _read_texts(value) if _HUB_NAME.fullmatch(name))


def trace_ancestry(artifact: Artifact, folder: Path, origin: Path | None) -> Ancestry:
    """Return the parents of the model that a step left in `folder`, its oldest known ancestors, and its data.

    `origin` is the folder of the run's recipe, at which relative paths start. An ancestor that another run
    made is followed to its own ancestors and data by the record in its folder. Its licence is its own if its
    card states one.
    """
    found, _ = _follow(artifact, folder, origin)
    _, roots = _follow(artifact, folder, origin, lambda parent: parent.licence is not None)
    parents = _find_parents(artifact, folder.parent, origin)
    return Ancestry(_tell_apart(parents), _tell_apart(roots), _join_training_data(found))


_Result = tuple[Artifact, Path]


def _follow(
    artifact: Artifact,
    folder: Path,
    origin: Path | None,
    is_end: Callable[[Parent], bool] = lambda _: False,
) -> tuple[list[_Result], tuple[Parent, ...]]:
    """Return the results behind a model, itself first, and the models at which the search ends.

    It ends at models that no step made, and at results of other runs for which `is_end` is true.
    """
    ends: dict[str, Parent] = {}
    results, met = [(artifact, folder)], {folder.resolve()}
    for current, place in results:  # which grows
        for parent in _find_parents(current, place.parent, origin):
            adapter = _find_adapter(parent, place.parent, origin, is_end)
            main = _without_adapter(parent) if adapter else parent
            found = _find_result(main, place.parent, origin, is_end)
            if found is None:
                ends.setdefault(main.reference or main.name, main)
            for result in (found, adapter):
                if result is not None and result[1].resolve() not in met:
                    met.add(result[1].resolve())
                    results.append(result)
    return results, tuple(ends.values())


def _without_adapter(parent: Parent) -> Parent:
    name, _, _ = parent.name.partition("+")
    return replace(parent, name=name, reference=parent.reference.partition("+")[0])


def _find_adapter(
    parent: Parent, out: Path, origin: Path | None, is_end: Callable[[Parent], bool]
) -> _Result | None:
    """Return the result of the step that made the adapter on a parent; None if there is none."""
    adapter = (parent.reference or parent.name).partition("+")[2]
    if not adapter:
        return None
    return _find_result(_find_parent(adapter, None, out, origin), out, origin, is_end)


def _find_result(
    parent: Parent, out: Path, origin: Path | None, is_end: Callable[[Parent], bool]
) -> _Result | None:
    """Return the result of the step of any run that made a parent; None if there is none or it is an end."""
    if parent.step:
        folder: Path | None = _find_result_link(parent.reference or parent.name, out)
    else:
        folder = None if is_end(parent) else _find_other_result(parent, origin)
    artifact = read_artifact(folder) if folder is not None else None
    return None if folder is None or artifact is None else (artifact, folder)


def _find_other_result(parent: Parent, origin: Path | None) -> Path | None:
    """Return the folder of a model that another run made; None for others."""
    text = parent.reference or parent.name
    if not text.startswith(_PATH_BEGINNINGS) or "+" in text:
        return None
    folder = _resolve(text, origin)
    return folder if (folder / ARTIFACT).is_file() else None


def _find_result_link(text: str, out: Path) -> Path:
    """Return the link of a step's result, if a step made it: `$id`, `id`, or a kept state `id/step-100`."""
    name = text.partition("+")[0].removeprefix("$").removesuffix(".checkpoints")
    link = OutFolder(out).link(name)
    return link if link.is_dir() else OutFolder(out).link(name.partition("/")[0])


def _join_training_data(results: Iterable[_Result]) -> tuple[Trained, ...]:
    """Return the data sets from which trainings used rows, each once, with the most rows that one used."""
    rows_by_set: dict[Trained, list[int]] = {}
    for artifact, _ in results:
        details = artifact.details
        for name, used in details.datasets.items() if isinstance(details, TrainingDetails) else ():
            if used.rows:
                # Sets of one name may differ: a file's name is the default.
                dataset = Trained(name, used.task, whole=used.of, origin=used.source)
                rows_by_set.setdefault(dataset, []).append(used.rows)
    return tuple(replace(dataset, rows=max(rows)) for dataset, rows in rows_by_set.items())

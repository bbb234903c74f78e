"""Lineage of a model: its parents, with the licences and languages that they state."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from emberge.contracts import Artifact
from emberge.errors import CheckpointError
from emberge.model_folder import in_package, read_front_matter
from emberge.results.run_folder import ARTIFACT, OutFolder, read_artifact

README = "README.md"
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HUB_NAME = re.compile(r"(?:[\w][\w.-]*/)?[\w][\w.-]*")  # names of old models have no owner


@dataclass(frozen=True, slots=True)
class Parent:
    """Model from which another model was made; facts that no file states are empty or None.

    `bases` are the hub ids from which the model descends: its own id if it is on the hub. `datasets` are the
    data sets that its card names. `card` is False if no card was found.
    """

    name: str
    weight: Any = None
    revision: str | None = None
    link: str | None = None
    licence: str | None = None
    languages: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    step: bool = False
    datasets: tuple[str, ...] = ()
    card: bool = False


@dataclass(frozen=True, slots=True)
class Trained:
    """Data set that a model was trained on: `rows` of its `whole` number of examples."""

    name: str
    task: str = ""
    rows: int | None = None
    whole: int | None = None
    licence: str | None = None


class Ancestry(NamedTuple):
    """Ancestry of a model: its parents, its ancestors outside the run, and all training data."""

    parents: tuple[Parent, ...]
    roots: tuple[Parent, ...]
    data: tuple[Trained, ...]


def _find_parents(artifact: Artifact, out: Path, origin: Path | None) -> tuple[Parent, ...]:
    """Return the parents of a model that a step in `out` made; `origin` is the folder of its recipe.

    A training's parent is its base; a merge's parents are its models, and its base if it has one. If a parent
    is known only by a folder's name, its reference in the recipe is used to find it.
    """
    weights = _read_weights(artifact)
    base = artifact.details.get("base")
    names = dict.fromkeys(weights)
    if isinstance(base, str) and base:
        names.setdefault(base)
    reference = artifact.details.get("base_reference")
    reference_by_base = (
        {base: reference} if isinstance(base, str) and isinstance(reference, str) else {}
    )
    return tuple(
        replace(_find_parent(reference_by_base[name], weights.get(name), out, origin), name=name)
        if name in reference_by_base
        else _find_parent(name, weights.get(name), out, origin)
        for name in names
    )


def _read_weights(artifact: Artifact) -> dict[str, Any]:
    """Map each parent to its weight in the merge; None if no artifact states the weight."""
    weights = artifact.details.get("weights")
    if isinstance(weights, Mapping):
        return {str(name): weight for name, weight in weights.items()}
    parents: Sequence[str] = artifact.parents
    if isinstance(weights, list) and len(weights) == len(parents):
        return dict(zip(parents, weights, strict=True))
    return dict.fromkeys(parents)


def _find_parent(text: str, weight: Any, out: Path, origin: Path | None) -> Parent:
    if _find_result_link(text, out).is_dir():
        return Parent(text, weight, step=True)
    return model_outside(text, origin, weight)


def model_outside(text: str, origin: Path | None, weight: Any = None) -> Parent:
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
        return with_card(Parent(name, weight, revision or None, link, bases=(name,)), folder)
    return with_card(Parent(text, weight), folder)


def with_card(parent: Parent, folder: Path | None) -> Parent:
    """Return a parent with the licence and languages of a folder's card; unchanged without a card."""
    if folder is None or not (folder / README).is_file():
        return parent
    card = read_front_matter(folder)
    return replace(
        parent,
        card=True,
        bases=parent.bases or _read_hub_names(card.get("base_model")),
        datasets=_read_hub_names(card.get("datasets")),
        **_read_card_facts(card),
    )


def _read_card_facts(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return licence and languages of a card's front matter."""
    licence = card.get("license")
    if licence == "other":
        licence = card.get("license_name") or licence
    licence_text = ", ".join(_read_texts(licence))
    return {"licence": licence_text or None, "languages": _read_texts(card.get("language"))}


def _find_folder(name: str, revision: str | None, origin: Path | None) -> Path | None:
    """Return the folder of a model outside the run, found without a network."""
    if name.startswith("pkg:"):
        try:
            return in_package(name.removeprefix("pkg:"))
        except CheckpointError:
            return None
    if name.startswith((".", "/", "~")):
        return (origin or Path()) / Path(name).expanduser()
    if not _HUB_ID.fullmatch(name):
        return None
    from huggingface_hub import try_to_load_from_cache

    card = try_to_load_from_cache(name, README, revision=revision)
    return Path(card).parent if isinstance(card, str) else None


def _read_texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _read_hub_names(value: Any) -> tuple[str, ...]:
    """Return the names of models or data on a hub; other values, which a card may have, are left out."""
    return tuple(name for name in _read_texts(value) if _HUB_NAME.fullmatch(name))


def ancestry(
    artifact: Artifact, out: Path, origin: Path | None, declared: Collection[str] = ()
) -> Ancestry:
    """Return the parents of a model that a step in `out` made, its oldest known ancestors, and its data.

    `origin` is the folder of the run's recipe, at which relative paths start. An ancestor that another run
    made, and whose card states no licence, is followed to its own ancestors and data by the record in its
    folder, unless `declared`, which are the names of models with known licences, contains it.
    """
    roots: dict[str, Parent] = {}
    data: dict[tuple[object, ...], Trained] = {}
    waiting, met = [(artifact, out)], set[Path]()
    while waiting:
        current, run = waiting.pop(0)
        for trained in _list_training_data(current):
            # Sets of one name may differ: a file's name is the default.
            key = (trained.name, trained.task, trained.whole, trained.licence)
            listed = data.get(key)
            if listed is None or (trained.rows or 0) > (listed.rows or 0):
                data[key] = trained
        for parent in _find_parents(current, run, origin):
            folder = (
                _find_result_link(parent.name, run)
                if parent.step
                else _find_other_result(parent, origin, declared)
            )
            parent_artifact = read_artifact(folder) if folder is not None else None
            if folder is None or parent_artifact is None:
                roots.setdefault(parent.name, parent)
            elif folder.resolve() not in met:
                met.add(folder.resolve())
                waiting.append((parent_artifact, folder.parent))
    parents = _find_parents(artifact, out, origin)
    return Ancestry(parents, tuple(roots.values()), tuple(data.values()))


def ancestors_outside(
    text: str, origin: Path | None, declared: Collection[str] = ()
) -> tuple[Parent, ...]:
    """Return a model from outside the run, or the oldest known ancestors of one that another run made.

    The arguments are those of `model_outside` and `ancestry`.
    """
    parent = model_outside(text, origin)
    folder = _find_other_result(parent, origin, declared)
    artifact = read_artifact(folder) if folder is not None else None
    if folder is None or artifact is None:
        return (parent,)
    return ancestry(artifact, folder.parent, origin, declared).roots


def _find_other_result(
    parent: Parent, origin: Path | None, declared: Collection[str]
) -> Path | None:
    """Return the folder of a model without a licence of its own that another run made; None for others."""
    is_local = parent.name.startswith((".", "/", "~")) and "+" not in parent.name
    if not is_local or parent.licence or parent.name in declared:
        return None
    folder = _find_folder(parent.name, None, origin)
    return folder if folder is not None and (folder / ARTIFACT).is_file() else None


def _find_result_link(text: str, out: Path) -> Path:
    """Return the link of a step's result, if a step made it: `$id`, `id`, or a kept state `id/step-100`."""
    name = text.partition("+")[0].removeprefix("$").removesuffix(".checkpoints")
    link = OutFolder(out).link(name)
    return link if link.is_dir() else OutFolder(out).link(name.partition("/")[0])


def _list_training_data(artifact: Artifact) -> tuple[Trained, ...]:
    """Return the data sets from which a training used rows, with the licences that their entries state."""
    datasets = artifact.details.get("datasets")
    if not isinstance(datasets, Mapping):
        return ()
    listed = (_build_trained(str(name), used) for name, used in datasets.items())
    return tuple(trained for trained in listed if trained.rows != 0)


def _build_trained(name: str, used: Any) -> Trained:
    counts = used if isinstance(used, Mapping) else {}
    rows, total, licence = (counts.get(key) for key in ("rows", "of", "licence"))
    return Trained(
        name,
        task=str(counts.get("task") or ""),
        rows=rows if isinstance(rows, int) else None,
        whole=total if isinstance(total, int) else None,
        licence=str(licence) if licence else None,
    )


def results_in(out: Path) -> list[Path]:
    """Return the links in OUT that lead to steps' current results."""
    return sorted(path for path in out.iterdir() if path.is_symlink() and path.is_dir())

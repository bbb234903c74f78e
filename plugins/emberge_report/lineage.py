"""Lineage of a model: its parents with their licences and languages, and all data it was trained on."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from emberge import Artifact, CheckpointError, ModelRef
from emberge.contracts import BaseFacts, DataOrigin, MergeDetails, TrainingDetails
from emberge.model_folder import HUB_ID, HUB_NAME, find_model_name
from emberge.results import OutFolder, read_artifact
from emberge_hub import find_in_package

from emberge_report.markdown import CARD_FILE, read_front_matter, read_licence

# Beginnings of references to folders.
_PATH_BEGINNINGS = (".", "/", "~")


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
    is_step: bool = False
    reference: str = ""


@dataclass(frozen=True, slots=True)
class TrainingSet:
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
    """Ancestry of a model: its parents, its oldest ancestors up to those of known licence, and its data.

    `warnings` are those of steps that changed an ancestor, such as a trimmed vocabulary, after its name.
    """

    parents: tuple[Parent, ...]
    roots: tuple[Parent, ...]
    data: tuple[TrainingSet, ...]
    warnings: tuple[str, ...]


# A step's result, and its folder.
_Result = tuple[Artifact, Path]


@dataclass(frozen=True, slots=True)
class _ModelFinder:
    """Search for models by their references in recipes.

    Results of steps are in the folder `out`; relative paths start at `recipe_folder`. No network is used.
    """

    out: Path
    recipe_folder: Path | None

    def find_parents(self, artifact: Artifact) -> tuple[Parent, ...]:
        """Return the parents of the model that a step in `out` made.

        A training's parent is its base; a merge's parents are its models, and its base if it has one. If a
        parent is known only by a folder's name, its reference in the recipe is used to find it.
        """
        details, base = artifact.details, artifact.base or BaseFacts()
        weights: Mapping[str, float | None] = dict.fromkeys(artifact.parents)
        if isinstance(details, MergeDetails):
            weights = details.weights
        names = [base.name if name == base.reference else name for name in (*weights, base.name)]
        parents = []
        for name in dict.fromkeys(filter(None, names)):
            is_base = name == base.name and base.reference != ""
            parent = self.find_parent(base.reference if is_base else name, weights.get(name))
            if is_base and parent.name != name:
                parent = replace(parent, name=name, reference=base.reference)
            parents.append(parent)
        return tuple(parents)

    def find_parent(self, text: str, weight: float | None) -> Parent:
        """Return the model that a reference names: a step of the run, or a model with its card's facts.

        The card of a model on a hub is known only if it was downloaded before.
        """
        is_path = text.startswith(_PATH_BEGINNINGS)
        if not is_path and self._find_result_link(text).is_dir():
            return Parent(text, weight, is_step=True)
        main, adapter = self._split_adapter(text.removeprefix("$"))
        name, revision = _split_revision(main)
        if HUB_ID.fullmatch(name) and not adapter:
            link = f"https://huggingface.co/{name}" + (f"/tree/{revision}" if revision else "")
            parent = Parent(name, weight, revision, link, bases=(name,))
        else:
            shown = "+".join(self._name_model(one) for one in (name, adapter) if one)
            is_folder = is_path or shown != text
            parent = Parent(shown if is_folder else text, weight)
            parent = replace(parent, reference=text) if is_folder else parent
        folder = self._find_card_folder(name, revision)
        if folder is None or not (card := read_front_matter(folder)):
            return parent
        return replace(
            parent,
            bases=parent.bases or _read_hub_names(card.get("base_model")),
            licence=read_licence(card),
            languages=_read_texts(card.get("language")),
        )

    def find_results(
        self, parent: Parent, is_end: Callable[[Parent], bool]
    ) -> Iterator[tuple[Parent, _Result | None]]:
        """Yield a parent with the result of the step that made it, and its adapter with its result.

        An adapter that no step made is a part of the parent.
        """
        main, adapter_text = self._split_adapter(parent.reference or parent.name)
        adapter = self.find_parent(adapter_text, None) if adapter_text else None
        adapter_result = self._find_result(adapter, is_end) if adapter is not None else None
        if adapter_result is not None:
            parent = self.find_parent(main, parent.weight)
        yield parent, self._find_result(parent, is_end)
        if adapter is not None and adapter_result is not None:
            yield adapter, adapter_result

    def _find_result(self, parent: Parent, is_end: Callable[[Parent], bool]) -> _Result | None:
        """Return the result of the step of any run that made a parent; None without one, and for an end."""
        text = parent.reference or parent.name
        if parent.is_step:
            folder = self._find_result_link(text)
        elif text.startswith(_PATH_BEGINNINGS) and not is_end(parent):
            folder = self._resolve(text)
        else:
            return None
        artifact = read_artifact(folder)
        return (artifact, folder) if artifact is not None else None

    def _name_model(self, text: str) -> str:
        """Return the name of a model's folder for readers; other references stay as they are."""
        if not text.startswith(_PATH_BEGINNINGS):
            return text
        folder = Path(os.path.abspath(self._resolve(text)))
        name = find_model_name(folder)
        results = read_front_matter(folder).get("model-index") if name == folder.name else None
        first = results[0] if isinstance(results, list) and results else None
        stated = first.get("name") if isinstance(first, Mapping) else None
        return stated if isinstance(stated, str) else name

    def _split_adapter(self, text: str) -> tuple[str, str | None]:
        """Return the texts of the model and the adapter in `model+adapter`, as a recipe reads them."""
        if text.startswith(_PATH_BEGINNINGS) and self._resolve(text).is_dir():
            return text, None  # even if the folder's name contains a plus sign
        return ModelRef(text).main, ModelRef(text).adapter

    def _resolve(self, text: str) -> Path:
        """Return the folder that a path in a recipe names."""
        return (self.recipe_folder or Path()) / Path(text).expanduser()

    def _find_card_folder(self, name: str, revision: str | None) -> Path | None:
        """Return the folder that has the card of a model outside the run, if there is a card."""
        if name.startswith("pkg:"):
            try:
                return find_in_package(name.removeprefix("pkg:"))
            except CheckpointError:
                return None
        if name.startswith(_PATH_BEGINNINGS):
            return self._resolve(name)
        if not HUB_ID.fullmatch(name):
            return None
        from huggingface_hub import try_to_load_from_cache

        card = try_to_load_from_cache(name, CARD_FILE, revision=revision)
        return Path(card).parent if isinstance(card, str) else None

    def _find_result_link(self, text: str) -> Path:
        """Return the link of a step's result, named `$id`, `id`, or by a kept state, `id/step-100`."""
        name = ModelRef(text).main.removeprefix("$").removesuffix(".checkpoints")
        link = OutFolder(self.out).locate_link(name)
        return link if link.is_dir() else OutFolder(self.out).locate_link(name.partition("/")[0])


def trace_ancestry(artifact: Artifact, folder: Path, recipe_folder: Path | None) -> Ancestry:
    """Return the parents of the model that a step left in `folder`, its oldest known ancestors, and its data.

    Relative paths start at `recipe_folder`, the folder of the run's recipe. An ancestor that another run
    made is followed to its own ancestors and data by the record in its folder. Its licence is its own if its
    card states one.
    """
    results = [(artifact, folder)]
    for _, result in _trace(artifact, folder, recipe_folder, lambda _: False):
        results += [result] if result is not None else []
    roots: dict[str, Parent] = {}
    for parent, result in _trace(artifact, folder, recipe_folder, lambda p: p.licence is not None):
        if result is None:
            roots.setdefault(parent.reference or parent.name, parent)
    parents = _ModelFinder(folder.parent, recipe_folder).find_parents(artifact)
    changed = [(one, path) for one, path in results[1:] if one.origin == "changed"]
    return Ancestry(
        _tell_apart(parents),
        _tell_apart(tuple(roots.values())),
        _join_training_data(results),
        tuple(f"{path.name}: {warning}" for one, path in changed for warning in one.warnings),
    )


def find_chosen_merge(
    artifact: Artifact, folder: Path, recipe_folder: Path | None
) -> tuple[Artifact, Path]:
    """Return the merge that a `select` step chose, with its folder; the arguments for any other step."""
    if artifact.origin != "chosen" or not artifact.parents:
        return artifact, folder
    finder = _ModelFinder(folder.parent, recipe_folder)
    parent = finder.find_parent(artifact.parents[0], None)
    ((_, result), *_) = finder.find_results(parent, lambda _: False)
    if result is None or result[0].origin != "merged" or result[0].adapter is not None:
        return artifact, folder
    return result


def _trace(
    artifact: Artifact, folder: Path, recipe_folder: Path | None, is_end: Callable[[Parent], bool]
) -> Iterator[tuple[Parent, _Result | None]]:
    """Yield the models behind a model, nearest first, each with the result of its step; each result once.

    Models that no step made have no result, nor have models of other runs for which `is_end` is true.
    """
    queue, seen_folders = deque([(artifact, folder)]), {folder.resolve()}
    while queue:
        current, current_folder = queue.popleft()
        finder = _ModelFinder(current_folder.parent, recipe_folder)
        for parent in finder.find_parents(current):
            for model, result in finder.find_results(parent, is_end):
                if result is not None:
                    if result[1].resolve() in seen_folders:
                        continue
                    seen_folders.add(result[1].resolve())
                    queue.append(result)
                yield model, result


def _split_revision(text: str) -> tuple[str, str | None]:
    """Return a model's name without `hf://`, and the revision after its `@`; a folder has no revision."""
    if text.startswith(_PATH_BEGINNINGS):
        return text, None
    name, separator, revision = text.removeprefix("hf://").rpartition("@")
    return (name, revision) if separator else (revision, None)


def _tell_apart(parents: tuple[Parent, ...]) -> tuple[Parent, ...]:
    """Return the parents with distinct names: folders are put before equal ones, such as checkpoint-100."""
    references = [ModelRef(parent.reference) for parent in parents]
    paths = [[Path(text).parts for text in (r.main, r.adapter) if text] for r in references]
    for depth in range(2, 1 + max((len(parts) for path in paths for parts in path), default=0)):
        counts = Counter(parent.name for parent in parents)
        parents = tuple(
            replace(parent, name="+".join("/".join(p[-depth:]).lstrip("/.") for p in path))
            if counts[parent.name] > 1 and parent.reference.startswith(_PATH_BEGINNINGS)
            else parent
            for parent, path in zip(parents, paths, strict=True)
        )
    return parents


def _read_texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _read_hub_names(value: Any) -> tuple[str, ...]:
    """Return the names of models or data on a hub; other values, which a card may have, are left out."""
    return tuple(name for name in _read_texts(value) if HUB_NAME.fullmatch(name))


def _join_training_data(results: Iterable[_Result]) -> tuple[TrainingSet, ...]:
    """Return the data sets from which trainings used rows, each once, with the most rows that one used."""
    rows_by_set: dict[TrainingSet, list[int]] = {}
    for artifact, _ in results:
        details = artifact.details
        for name, used in details.datasets.items() if isinstance(details, TrainingDetails) else ():
            if used.rows:
                # Sets of one name may differ: a file's name is the default.
                dataset = TrainingSet(name, used.task, whole=used.of, origin=used.source)
                rows_by_set.setdefault(dataset, []).append(used.rows)
    return tuple(replace(dataset, rows=max(rows)) for dataset, rows in rows_by_set.items())

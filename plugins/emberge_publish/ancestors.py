"""Ancestors of a model to publish: the models outside its run, with licences and training data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from emberge import Artifact, CheckpointError, ModelRef, Preflight, RecipeError, suggest
from emberge.results import (
    Parent,
    Trained,
    ancestors_outside,
    ancestry,
    read_artifact,
    with_card,
)
from emberge.wording import join_some

FetchCard = Callable[[str, str | None], Path | None]


@dataclass(frozen=True)
class Ancestors:
    """Models outside the run that a model was made from, and the data that all trainings behind it used.

    `models` are the oldest models up to those whose own licence is known, `outside` those that no step of any
    run made: only their cards name the data that they were trained on. `declared` has the names of models
    whose licence the publisher stated.
    """

    models: tuple[Parent, ...]
    data: tuple[Trained, ...] = ()
    merged: bool = False
    declared: tuple[str, ...] = ()
    outside: tuple[Parent, ...] = ()

    @property
    def licences(self) -> dict[str, str]:
        """Licences by the models' names."""
        return {model.name: model.licence for model in self.models if model.licence}

    @property
    def sources(self) -> tuple[Parent | Trained, ...]:
        """Models and data whose licences a reader should know."""
        return (*self.models, *self.data)

    @property
    def bases(self) -> list[str]:
        """Hub ids of the bases of all ancestors."""
        return list(dict.fromkeys(base for model in self.models for base in model.bases))

    @property
    def languages(self) -> list[str]:
        """Languages that the ancestors' cards name."""
        return list(
            dict.fromkeys(language for model in self.models for language in model.languages)
        )


def shown_name(name: str) -> str:
    """Return a model's name for publication; of a folder's path only the last part."""
    return Path(name).name if name.startswith((".", "/", "~")) else name


def is_of_hub(model: Parent) -> bool:
    """Return whether a model is on the hub and its card names no other base."""
    return model.bases == (model.name,)


def find_ancestors(
    folder: Path,
    origin: Path,
    declared: Mapping[str, str],
    fetch_card: FetchCard,
) -> Ancestors:
    """Return the ancestors of the model that a step left in `folder`.

    Relative paths of the step's recipe are relative to `origin`. `declared` has licences by ancestor.
    `fetch_card` downloads the card of a hub's model and returns its folder.

    Raises:
        CheckpointError: if no step made the folder, or an ancestor has no known licence.
        RecipeError: if a licence is declared for a model that is not an ancestor.
    """
    artifact = _read_record(folder)
    _, roots, data, outside = ancestry(artifact, folder, origin, declared)
    models = [_fetch_missing_card(model, fetch_card) for model in _split_adapters(roots, origin)]
    unknown_names = [name for name in declared if name not in {model.name for model in models}]
    if unknown_names:
        names = [model.name for model in models]
        raise RecipeError(
            f"--licence-of {unknown_names[0]}: the model does not go back to it"
            f"{suggest(unknown_names[0], names)}; it does to {join_some(names, 6)}"
        )
    licensed_models = _apply_licences(models, declared)
    if fault := _describe_unlicensed(licensed_models):
        raise CheckpointError(f"{folder}: {fault}")
    model_by_name = {model.name: model for model in licensed_models}
    outside_models = tuple(
        model_by_name.get(model.name) or _fetch_missing_card(model, fetch_card)
        for model in _split_adapters(outside, origin)
    )
    merged = "strategy" in artifact.details
    return Ancestors(tuple(licensed_models), data, merged, tuple(declared), outside_models)


def expected_ancestors(
    model: ModelRef, context: Preflight, declared: Mapping[str, str], fetch_card: FetchCard
) -> Ancestors:
    """Return the ancestors that a model will have after the run, from the results that steps expect.

    Models of a hub without a readable card are left out.

    Raises:
        CheckpointError: if no step made the folder, or an ancestor has no known licence.
    """
    folder = context.model(model)
    if folder is not None:
        roots = ancestry(_read_record(folder), folder, model.folder, declared).roots
    else:
        names = dict.fromkeys(_list_expected_roots(model, context))
        found_roots = {
            root.name: root
            for name in names
            for root in ancestors_outside(name, model.folder, declared)
        }
        roots = tuple(found_roots.values())
    models = [
        _fetch_missing_card(parent, fetch_card) for parent in _split_adapters(roots, model.folder)
    ]
    licensed_models = _apply_licences(models, declared)
    known_models = [
        parent
        for parent in licensed_models
        if parent.licence or parent.card or not is_of_hub(parent)
    ]
    if fault := _describe_unlicensed(known_models):
        raise CheckpointError(fault)
    return Ancestors(tuple(known_models))


def _read_record(folder: Path) -> Artifact:
    artifact = read_artifact(folder)
    if artifact is None:
        raise CheckpointError(
            f"{folder}: has no artifact.json, so nothing is known of what it was made of; name the folder of "
            "a step's result or of a merged model"
        )
    return artifact


def _list_expected_roots(model: ModelRef, context: Preflight) -> Iterator[str]:
    """Yield the references outside the recipe that a model of the recipe will be made from."""
    waiting, seen_steps = [model.text], set[str]()
    while waiting:
        reference = ModelRef(waiting.pop(0), model.folder)
        expected = context.expected(reference)
        if reference.step is None:
            yield reference.text
        elif expected is not None and reference.step not in seen_steps:
            seen_steps.add(reference.step)
            waiting += expected.artifact.parents


def _apply_licences(models: Iterable[Parent], declared: Mapping[str, str]) -> list[Parent]:
    """Return the models, with the licences that the publisher states for them."""
    return [replace(o, licence=declared[o.name]) if o.name in declared else o for o in models]


def _split_adapters(roots: Iterable[Parent], origin: Path) -> Iterator[Parent]:
    """Yield each model, followed by its adapter as a separate model with its own licence."""
    for model in roots:
        reference = ModelRef(model.name)
        if reference.adapter is None:
            yield model
            continue
        yield replace(model, name=reference.main)
        path = Path(reference.adapter).expanduser()
        local = reference.adapter.startswith((".", "/", "~"))
        bases = () if local else (reference.adapter,)
        yield with_card(Parent(reference.adapter, bases=bases), origin / path if local else None)


def _fetch_missing_card(model: Parent, fetch_card: FetchCard) -> Parent:
    if model.card or not is_of_hub(model):
        return model
    return with_card(model, fetch_card(model.name, model.revision))


def _describe_unlicensed(models: Iterable[Parent]) -> str:
    """Return a message on models without a known licence, with the remedy; "" if all have one."""
    unlicensed = [model for model in models if not model.licence]
    if not unlicensed:
        return ""
    lines = []
    for model in unlicensed:
        reason = "its card states no licence" if model.card else "it has no card that can be found"
        unknown = "its licence is" if model.datasets else "its licence and training data are"
        lines.append(f"'{model.name}': {reason}, so {unknown} unknown")
    name = unlicensed[0].name
    download = next((m.name for m in unlicensed if is_of_hub(m) and not m.card), None)
    remedy = "Give it a README.md with `license:` in its front matter"
    if download is not None:
        remedy += f", download its card (hf download {download} README.md)"
    return (
        f"{'; '.join(lines)}. {remedy}, or state what you "
        f"know: --licence-of {name}=apache-2.0, in a recipe licences: {{{name}: apache-2.0}}"
    )


def skip_card(name: str, revision: str | None) -> None:
    """Return None in place of the card of a hub's model, for work without a network."""

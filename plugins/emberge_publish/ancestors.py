"""Ancestors of a model to publish: the models outside its run, with licences and training data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from emberge import Artifact, CheckpointError, ModelRef, Preflight, RecipeError, suggest
from emberge.results import Parent, Trained, ancestry, model_outside, read_artifact, with_card
from emberge.wording import join_some

FetchCard = Callable[[str, str | None], Path | None]


@dataclass(frozen=True)
class Ancestors:
    """Models that a model goes back to, and the data that it learned from in its own run.

    `declared` are the names of those whose licence the publisher stated.
    """

    models: tuple[Parent, ...]
    data: tuple[Trained, ...] = ()
    merged: bool = False
    declared: tuple[str, ...] = ()

    @property
    def licences(self) -> dict[str, str]:
        """Licences by the models' names."""
        return {one.name: one.licence for one in self.models if one.licence}

    @property
    def sources(self) -> tuple[Parent | Trained, ...]:
        """Models and data whose licences a reader should know."""
        return (*self.models, *self.data)

    @property
    def bases(self) -> list[str]:
        """Ids on a hub that the model goes back to."""
        return list(dict.fromkeys(base for one in self.models for base in one.bases))

    @property
    def languages(self) -> list[str]:
        """Languages that any of them names."""
        return list(dict.fromkeys(language for one in self.models for language in one.languages))


def shown_name(name: str) -> str:
    """Return a model's name for others: of a folder, nothing of its place on this machine."""
    return Path(name).name if name.startswith((".", "/", "~")) else name


def is_of_hub(one: Parent) -> bool:
    """Return whether a model is one of the hub's whose card names no model that it was made of."""
    return one.bases == (one.name,)


def find_ancestors(
    folder: Path,
    origin: Path,
    declared: Mapping[str, str],
    fetch_card: FetchCard,
) -> Ancestors:
    """Return the ancestors of the model that a step left in `folder`.

    `origin` is the folder that relative paths of its recipe start at, `declared` has licences by ancestor,
    and `fetch_card` finds a folder with the card of a hub's model.

    Raises:
        CheckpointError: for a folder that no step made, and for ancestors without a known licence.
        RecipeError: for a declared licence of what is no ancestor.
    """
    artifact = _read_record(folder)
    _, roots, data = ancestry(artifact, folder.parent, origin)
    found = [_fetch_missing_card(one, fetch_card) for one in _split_adapters(roots, origin)]
    unknown = [name for name in declared if name not in {one.name for one in found}]
    if unknown:
        names = [one.name for one in found]
        raise RecipeError(
            f"--licence-of {unknown[0]}: the model does not go back to it{suggest(unknown[0], names)}; "
            f"it does to {join_some(names, 6)}"
        )
    stated = _declare_licences(found, declared)
    if fault := _describe_unknown(stated):
        raise CheckpointError(f"{folder}: {fault}")
    merged = "strategy" in artifact.details
    return Ancestors(tuple(stated), data, merged, tuple(declared))


def expected_ancestors(
    model: ModelRef, context: Preflight, declared: Mapping[str, str], fetch_card: FetchCard
) -> Ancestors:
    """Return the ancestors of a model before the run, as far as steps announce what they will make.

    Models of a hub are left out while their cards cannot be seen.

    Raises:
        CheckpointError: for a folder that no step made, and for ancestors without a known licence.
    """
    folder = context.model(model)
    if folder is not None:
        roots = ancestry(_read_record(folder), folder.parent, model.folder).roots
    else:
        names = dict.fromkeys(_list_expected_roots(model, context))
        roots = tuple(model_outside(name, model.folder) for name in names)
    found = [_fetch_missing_card(one, fetch_card) for one in _split_adapters(roots, model.folder)]
    stated = _declare_licences(found, declared)
    seen = [one for one in stated if one.licence or one.card or not is_of_hub(one)]
    if fault := _describe_unknown(seen):
        raise CheckpointError(fault)
    return Ancestors(tuple(seen))


def _read_record(folder: Path) -> Artifact:
    artifact = read_artifact(folder)
    if artifact is None:
        raise CheckpointError(
            f"{folder}: has no artifact.json, so nothing is known of what it was made of; name the folder of "
            "a step's result or of a merged model"
        )
    return artifact


def _list_expected_roots(model: ModelRef, context: Preflight) -> Iterator[str]:
    """Yield the models outside the recipe that a model of it will go back to."""
    waiting, met = [model.text], set[str]()
    while waiting:
        reference = ModelRef(waiting.pop(0), model.folder)
        expected = context.expected(reference)
        if reference.step is None:
            yield reference.text
        elif expected is not None and reference.step not in met:
            met.add(reference.step)
            waiting += expected.artifact.parents


def _declare_licences(models: Iterable[Parent], declared: Mapping[str, str]) -> list[Parent]:
    """Return models with the licences that the publisher states."""
    return [replace(o, licence=declared[o.name]) if o.name in declared else o for o in models]


def _split_adapters(roots: Iterable[Parent], origin: Path) -> Iterator[Parent]:
    """Yield each model, and after it the adapter on it, which has a licence of its own."""
    for one in roots:
        reference = ModelRef(one.name)
        if reference.adapter is None:
            yield one
            continue
        yield replace(one, name=reference.main)
        path = Path(reference.adapter).expanduser()
        local = reference.adapter.startswith((".", "/", "~"))
        bases = () if local else (reference.adapter,)
        yield with_card(Parent(reference.adapter, bases=bases), origin / path if local else None)


def _fetch_missing_card(one: Parent, fetch_card: FetchCard) -> Parent:
    if one.card or not is_of_hub(one):
        return one
    return with_card(one, fetch_card(one.name, one.revision))


def _describe_unknown(models: Iterable[Parent]) -> str:
    """Return what is not known of the models' licences, and the fix; "" if all are known."""
    silent = [one for one in models if not one.licence]
    if not silent:
        return ""
    lines = []
    for one in silent:
        what = "its card states no licence" if one.card else "it has no card that can be found"
        unknown = "its licence is" if one.datasets else "its licence and training data are"
        lines.append(f"'{one.name}': {what}, so {unknown} unknown")
    name = silent[0].name
    return (
        f"{'; '.join(lines)}. Give it a README.md with `license:` in its front matter, or state what you "
        f"know: --licence-of {name}=apache-2.0, in a recipe licences: {{{name}: apache-2.0}}"
    )

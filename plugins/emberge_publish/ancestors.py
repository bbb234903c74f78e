"""Ancestors of a model to publish: the models outside its run, with licences and training data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from emberge import CheckpointError, ModelRef, RecipeError, suggest
from emberge.engine import Parent, Trained, ancestry, join_some, read_artifact, with_card

__all__ = ["Ancestors", "find_ancestors", "is_of_hub", "shown_name"]


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
    """Return whether a model is a hub's own, and not one that states in its card what it was made of."""
    return one.bases == (one.name,)


def find_ancestors(
    folder: Path,
    origin: Path,
    declared: Mapping[str, str],
    fetch_card: Callable[[str, str | None], Path | None],
) -> Ancestors:
    """Return the ancestors of the model that a step left in `folder`.

    `origin` is the folder that relative paths of its recipe start at, `declared` has licences by ancestor,
    and `fetch_card` finds a folder with the card of a hub's model.

    Raises:
        CheckpointError: for a folder that no step made, and for ancestors of which no licence is known.
        RecipeError: for a declared licence of what is no ancestor.
    """
    artifact = read_artifact(folder)
    if artifact is None:
        raise CheckpointError(
            f"{folder}: has no artifact.json, so nothing is known of what it was made of; name the folder of "
            "a step's result or of a merged model"
        )
    _, roots, data = ancestry(artifact, folder.parent, origin)
    found = [_with_fetched(one, fetch_card) for one in _with_adapters(roots, origin)]
    unknown = [name for name in declared if name not in {one.name for one in found}]
    if unknown:
        names = [one.name for one in found]
        raise RecipeError(
            f"--licence-of {unknown[0]}: the model does not go back to it{suggest(unknown[0], names)}; "
            f"it does to {join_some(names, 6)}"
        )
    stated = [replace(o, licence=declared[o.name]) if o.name in declared else o for o in found]
    _require_licences(stated, folder)
    merged = "strategy" in artifact.details
    return Ancestors(tuple(stated), data, merged, tuple(declared))


def _with_adapters(roots: Iterable[Parent], origin: Path) -> Iterator[Parent]:
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


def _with_fetched(one: Parent, fetch_card: Callable[[str, str | None], Path | None]) -> Parent:
    if one.card or not is_of_hub(one):
        return one
    return with_card(one, fetch_card(one.name, one.revision))


def _require_licences(models: Iterable[Parent], folder: Path) -> None:
    silent = [one for one in models if not one.licence]
    if not silent:
        return
    lines = []
    for one in silent:
        what = "its card states no licence" if one.card else "it has no card that can be found"
        unknown = "its licence is" if one.datasets else "its licence and training data are"
        lines.append(f"'{one.name}': {what}, so {unknown} unknown")
    name = silent[0].name
    raise CheckpointError(
        f"{folder}: {'; '.join(lines)}. Give it a README.md with `license:` in its front matter, or state "
        f"what you know: --licence-of {name}=apache-2.0"
    )

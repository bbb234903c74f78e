"""Writing of model cards for every model of a run, repeated once its scores are known.

A card is a function of the files in OUT, so writing it twice changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import Artifact, CheckpointError, hookimpl
from emberge.documents import Card

if TYPE_CHECKING:
    from emberge.evaluating import Scores

    from emberge_report.card.card import CardFacts, ModelOrigin


CARD, RECORD = "README.md", "artifact.json"
# Folder of a run's recipe, by its OUT: relative references are relative to it.
_ORIGINS: dict[Path, Path] = {}


@hookimpl(specname="run_started")
def card_origin(out: Path, recipe: Path | None) -> None:
    """Store the folder of the run's recipe, for cards written later."""
    _ORIGINS[out.resolve()] = recipe.parent.resolve() if recipe is not None else Path.cwd()


@hookimpl(specname="step_finished")
def card_of_finished(out: Path, step: str, folder: Path, artifact: Artifact) -> None:
    """Write the card of a new model, or write new scores into the cards of the scored models."""
    _update_cards(out, step, folder, artifact)


@hookimpl(specname="step_skipped")
def card_of_skipped(out: Path, step: str, folder: Path) -> None:
    """Write the cards of a step that finished in an earlier run, as they may be missing or lack scores."""
    from emberge.results import read_artifact

    artifact = read_artifact(folder)
    if artifact is not None:
        _update_cards(out, step, folder, artifact)


def _update_cards(out: Path, step: str, folder: Path, artifact: Artifact) -> None:
    from emberge.results import OutFolder, read_artifact

    if artifact.kind == "model":
        _write_card(out, step, folder, artifact)
    if artifact.kind != "scores":
        return
    for name in _read_scores_of(folder).models:
        model = OutFolder(out).link(name)
        artifact_of_model = read_artifact(model) if model.is_dir() else None
        if artifact_of_model is not None and artifact_of_model.kind == "model":
            _write_card(out, name, model, artifact_of_model)


def _write_card(out: Path, name: str, folder: Path, artifact: Artifact) -> None:
    """Write the card of the model that step `name` of the run in `out` left in `folder`, atomically."""
    from emberge.documents import draw_card
    from emberge.results import write_with_record

    from emberge_report.card.card import model_card

    card = model_card(_gather_facts(out, name, folder, artifact, _ORIGINS.get(out.resolve())))
    write_with_record(folder.resolve(), CARD, draw_card(card))


def card_of(folder: Path, origin: Path, name: str) -> Card:
    """Return the card of the model that a step left in `folder`, opened by `name`, with its scores.

    Raises:
        CheckpointError: if no step made the folder.
    """
    from emberge.results import read_artifact

    from emberge_report.card.card import model_card

    artifact = read_artifact(folder)
    if artifact is None:
        raise CheckpointError(f"{folder}: has no artifact.json, so nothing is known of the model")
    step = str(json.loads((folder / RECORD).read_text(encoding="utf-8")).get("step") or folder.name)
    facts = _gather_facts(folder.parent, step, folder, artifact, origin)
    return model_card(replace(facts, opened_as=name))


def _gather_facts(
    out: Path, name: str, folder: Path, artifact: Artifact, origin: Path | None
) -> CardFacts:
    from emberge.results import ancestry

    from emberge_report.card.card import CardFacts
    from emberge_report.card.card_contamination import contamination_behind
    from emberge_report.model_facts import anatomy

    parents, roots, data, _ = ancestry(artifact, folder, origin)
    return CardFacts(
        name=name,
        artifact=artifact,
        anatomy=anatomy(folder),
        parents=parents,
        roots=roots,
        data=data,
        scores=tuple(_find_scores(name, folder, out)),
        contamination=contamination_behind(folder, out),
        origin=_read_origin(folder, artifact),
    )


def _find_scores(name: str, folder: Path, out: Path) -> Iterator[Scores]:
    """Yield the evaluations in OUT that scored exactly these weights under this name."""
    from emberge.hashes import HashCache
    from emberge.model_folder import model_fingerprint
    from emberge.results import OutFolder, read_artifact, results_in

    content = None
    for step_folder in results_in(out):
        artifact = read_artifact(step_folder)
        if artifact is None or artifact.kind != "scores":
            continue
        scores = _read_scores_of(step_folder)
        names = scores.in_forms(name)
        if not names:
            continue
        if content is None:
            hashes = HashCache(OutFolder(out).store / "hashes.json", root=out)
            content = model_fingerprint(folder.resolve(), hashes)
        if scores.fingerprints[names[0]] == content:
            yield scores


def _read_scores_of(folder: Path) -> Scores:
    from emberge.evaluating import read_scores

    return read_scores(folder)


def _read_origin(folder: Path, artifact: Artifact) -> ModelOrigin:
    from emberge_report.card.card import ModelOrigin

    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    versions = record.get("versions")
    return ModelOrigin(
        component=str(record.get("component", "")),
        fingerprint=str(record.get("fingerprint", "")),
        versions=tuple(versions.items()) if isinstance(versions, Mapping) else (),
        seed=artifact.details.get("seed", record.get("seed")),
        recipe_hash=str(record.get("recipe", "")),
    )

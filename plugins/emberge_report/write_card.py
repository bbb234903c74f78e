"""Writing of model cards for every model of a run, repeated once its scores are known.

A card is a function of the files in OUT, so writing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import Artifact, hookimpl
from emberge.contracts import Event, RunStarted, StepFinished, StepSkipped

if TYPE_CHECKING:
    from emberge.evaluating import Scores


CARD, RECORD = "README.md", "artifact.json"
# Folder of a run's recipe, by its OUT: relative references are relative to it.
_ORIGINS: dict[Path, Path] = {}


@hookimpl
def hear_event(event: Event) -> None:
    """Write the card of a new model, or write new scores into the cards of the scored models.

    The cards of a step that finished in an earlier run may be missing or lack scores.
    """
    from emberge.results import read_artifact

    if isinstance(event, RunStarted):
        folder = event.recipe.parent.resolve() if event.recipe is not None else Path.cwd()
        _ORIGINS[event.out.resolve()] = folder
    elif isinstance(event, StepFinished | StepSkipped):
        artifact = read_artifact(event.folder)
        if artifact is not None:
            _write_cards(event.out, event.step, event.folder, artifact)


def _write_cards(out: Path, step: str, folder: Path, artifact: Artifact) -> None:
    from emberge.evaluating import read_scores
    from emberge.results import OutFolder, read_artifact

    if artifact.kind == "model":
        _write_card(out, step, folder, artifact)
    if artifact.kind != "scores":
        return
    for name in read_scores(folder).models:
        model = OutFolder(out).link(name)
        artifact_of_model = read_artifact(model) if model.is_dir() else None
        if artifact_of_model is not None and artifact_of_model.kind == "model":
            _write_card(out, name, model, artifact_of_model)


def _write_card(out: Path, name: str, folder: Path, artifact: Artifact) -> None:
    """Write the card of the model that step `name` of the run in `out` left in `folder`, atomically."""
    from emberge.files import read_json
    from emberge.results import write_with_record
    from emberge.wording import hide_places

    from emberge_report.card import CardFacts, draw_card
    from emberge_report.lineage import ancestry
    from emberge_report.model_facts import anatomy

    parents, roots, data = ancestry(artifact, folder, _ORIGINS.get(out.resolve()))
    told = hide_places({"details": artifact.details, "warnings": artifact.warnings})
    facts = CardFacts(
        name=name,
        artifact=replace(artifact, **told),
        anatomy=anatomy(folder),
        parents=parents,
        roots=roots,
        data=data,
        scores=tuple(_find_scores(name, folder, out)),
        record=read_json(folder / RECORD),
    )
    write_with_record(folder.resolve(), CARD, draw_card(facts))


def _find_scores(name: str, folder: Path, out: Path) -> Iterator[Scores]:
    """Yield the evaluations in OUT that scored exactly these weights under this name."""
    from emberge.evaluating import read_scores
    from emberge.hashes import HashCache, find_user_table
    from emberge.model_folder import model_fingerprint
    from emberge.results import read_artifact, results_in

    content = None
    for step_folder in results_in(out):
        artifact = read_artifact(step_folder)
        if artifact is None or artifact.kind != "scores":
            continue
        scores = read_scores(step_folder)
        names = scores.at_sizes(name)
        if not names:
            continue
        if content is None:
            content = model_fingerprint(folder.resolve(), HashCache(find_user_table()))
        if scores.fingerprints[names[0]] == content:
            yield scores

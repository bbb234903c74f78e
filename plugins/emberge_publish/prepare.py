"""Preparation of a publication: gathers and checks files, licence, ancestors, card and results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emberge import CheckpointError, Leaderboard, Plugins
from emberge.contracts import BoardEntry
from emberge.documents import Card, draw_card
from emberge.evaluating import read_scores, safe_file_name
from emberge.files import JSON_LIMIT, read_json, read_regular
from emberge.hashes import HashCache
from emberge.model_folder import licence_limits, model_fingerprint, published_files
from emberge.results import (
    read_artifact,
    record_text,
    require_sound_result,
    results_in,
    with_contents,
)
from emberge.tensor_files import FileContent
from emberge.wording import join_some, printable

from emberge_publish.ancestors import Ancestors, FetchCard, find_ancestors, is_of_hub
from emberge_publish.credentials import Content, require_no_credentials
from emberge_publish.hub_repository import Repository, card_on_hub
from emberge_publish.licences import Terms, joint_terms
from emberge_publish.publication import CARD, Choices, Publication
from emberge_publish.published_card import authors_card, overlap_of, published_card
from emberge_publish.training_summary import TrainingSummary

_NO_VERSION = "no version"


def prepare(
    folder: Path,
    choices: Choices,
    plugins: Plugins,
    origin: Path,
    fetch_card: FetchCard = card_on_hub,
) -> Publication:
    """Gather and check the files to publish of the model in `folder`, and return them without an upload.

    Relative paths of the model's recipe are relative to `origin`. `fetch_card` returns the folder with the
    card of a hub's model.

    Raises:
        CheckpointError: if the folder is not a model, an ancestor's licence is unknown or forbids
        publication,
            the leaderboard would refuse the model's facts, or files changed after the step.
        RecipeError: if the name is not of the form `owner/name`. EmbergeError: if a file contains a token or
            a key.
    """
    repository = Repository(choices.name)
    result = folder.absolute()
    _require_model(result)
    require_sound_result(result)
    ancestors = find_ancestors(result, origin, choices.licences, fetch_card)
    terms = joint_terms(ancestors.licences, choices.licence)
    if terms.licence is None:
        raise CheckpointError(f"{folder}: {terms.problem}")
    tasks = {model.name: _find_trained_on(model.bases, plugins) for model in ancestors.outside}
    results, unmet = _find_results(result)
    scored_names = [path.stem for path in results]
    record = read_json(result / RECORD)
    selection = choose_files(result.resolve(), record)
    text = _read_card(selection.files)
    card = _choose_base_card(result, text, record, choices.name, origin, plugins)
    full_card = draw_card(published_card(card, ancestors, terms, tasks, scored_names))
    version = str(record.get("fingerprint") or _NO_VERSION)
    summary = TrainingSummary(choices.name, version, ancestors, choices.statements)
    texts = {CARD: full_card, **summary.draw()}
    written_files = {name: text.encode() for name, text in texts.items()}
    written_files[RECORD] = record_text(with_contents(record, written_files)).encode()
    files: dict[str, Content] = {**selection.files, **written_files}
    require_no_credentials(files)
    publication = Publication(
        choices,
        repository,
        result,
        dict(sorted(files.items())),
        terms,
        ancestors,
        _build_board_entry(result, repository, ancestors, terms, tasks, results, plugins),
        (
            *(f"NOT MET: {requirement}" for requirement in unmet),
            *_list_notes(ancestors, tasks, scored_names),
            *left_notes(selection.unpublished),
        ),
        plugins,
    )
    with tempfile.TemporaryDirectory(prefix="emberge-publish-") as folder_name:
        publication.write_board(Path(folder_name), None)
    return publication


def _choose_base_card(
    result: Path, text: str, record: Mapping[str, Any], name: str, origin: Path, plugins: Plugins
) -> Card:
    """Return the card to extend: the author's if it was edited by hand, otherwise the run's."""
    reporters = plugins.every("reporter")
    by_hand = text and record["files"].get(CARD) != FileContent.of_bytes(text.encode()).plain()
    if by_hand or (text and not reporters):
        return authors_card(text)
    if reporters:
        run_card: Card = reporters[0].describe_model(result, origin, name)
        return run_card
    return Card(name.partition("/")[2], ["An embedding model, made with emberge."])


def _read_card(files: Mapping[str, Path]) -> str:
    """Return the text of the card in a result; "" without one."""
    if CARD not in files:
        return ""
    return read_regular(files[CARD], limit=JSON_LIMIT).decode("utf-8", errors="replace")


def _require_model(folder: Path) -> None:
    signs = ("modules.json", "config.json", "adapter_config.json")
    if not any((folder / sign).is_file() for sign in signs):
        raise CheckpointError(
            f"{folder}: is no model: it has neither modules.json nor config.json; name the folder of one"
        )


def _find_trained_on(bases: Sequence[str], plugins: Plugins) -> frozenset[str] | None:
    """Return the test sets on which a model's bases are known to have been trained; None if unknown."""
    boards: list[Leaderboard] = plugins.every("leaderboard")
    task_sets = [board.tasks_trained_on(base) for board in boards for base in bases]
    known_sets = [tasks for tasks in task_sets if tasks is not None]
    return frozenset().union(*known_sets) if known_sets else None


def _find_results(folder: Path) -> tuple[list[Path], list[str]]:
    """Return (result files, unmet requirements) of exactly these weights from evaluations in the same OUT."""
    content, files, unmet = None, dict[str, Path](), dict[str, None]()
    for step_folder in results_in(folder.parent):
        artifact = read_artifact(step_folder)
        if artifact is None or artifact.kind != "scores":
            continue
        content = content or model_fingerprint(folder.resolve(), HashCache(None))
        scores = read_scores(step_folder)
        for name, fingerprint in scores.fingerprints.items():
            if fingerprint == content:
                results_folder = step_folder / "results" / safe_file_name(name)
                files |= {path.stem: path for path in sorted(results_folder.glob("*.json"))}
                unmet |= {one.text: None for one in scores.requirements_on(name) if not one.met}
    return list(files.values()), list(unmet)


def _build_board_entry(
    folder: Path,
    repository: Repository,
    ancestors: Ancestors,
    terms: Terms,
    tasks: Mapping[str, frozenset[str] | None],
    results: Sequence[Path],
    plugins: Plugins,
) -> BoardEntry:
    known_sets = [one for one in tasks.values() if one is not None]
    own_sets = [one.tasks for one in ancestors.data if one.tasks is not None]
    is_complete = (
        len(known_sets) == len(tasks)
        and all(is_of_hub(one) for one in ancestors.outside)
        and len(own_sets) == len(ancestors.data)
    )
    own_names = [{dataset.name} for dataset in ancestors.data]
    backbone = plugins.find("text_encoder", "backbone").type()
    return BoardEntry(
        name=repository.name,
        date=datetime.now(UTC).date().isoformat(),
        licence=terms.licence or "unknown",
        languages=ancestors.languages,
        bases=ancestors.bases,
        dimension=backbone.describe(folder).dimension,
        reference=repository.url,
        trained_on=sorted(set().union(*known_sets, *own_sets, *own_names)) if is_complete else None,
        results=results,
    )


def _list_notes(
    ancestors: Ancestors,
    tasks: Mapping[str, frozenset[str] | None],
    scored: Sequence[str],
) -> Iterator[str]:
    for one in ancestors.data:
        if licence_limits(one.licence or "") & {"nc", "nd"}:
            yield (
                f"the data '{one.name}' is under {one.licence}; whether that binds a model trained on it is "
                "for you to judge"
            )
    unknown = [one.name for one in ancestors.outside if not one.datasets and not tasks[one.name]]
    personal = [one.name for one in ancestors.data if one.origin.personal_data]
    if personal:
        yield f"trained on personal data: {join_some(personal, 6)}; the summary of training data names them"
    silent = [one.name for one in ancestors.data if one.tasks is None]
    if silent and None not in tasks.values():
        yield (
            f"no ind_tasks stated for {join_some(silent, 6)}, so leaderboards list no training data; state "
            "in the entry of the data which evaluation tasks are from the same source, [] for none"
        )
    if unknown:
        yield f"training data unknown: {join_some(unknown, 6)}; the card says so"
    local_names = [one.name for one in ancestors.models if one.name.startswith(("/", "~"))]
    if local_names:
        yield (
            f"artifact.json and the card name folders of this machine ({join_some(local_names, 3)}); name "
            "them relative to the recipe if nobody should know"
        )
    overlap = overlap_of(tasks, scored)
    if overlap:
        yield f"scored on tasks that an ancestor was trained on: {join_some(list(overlap), 6)}"


RECORD = "artifact.json"
# Written into a result after its step, so not all of them are in its record.
_ADDED_LATER = (CARD, RECORD)


@dataclass(frozen=True)
class ChosenFiles:
    """Files to publish by name, and names of files left out because the result's record lacks them."""

    files: Mapping[str, Path]
    unpublished: tuple[str, ...]


def choose_files(folder: Path, record: Mapping[str, Any]) -> ChosenFiles:
    """Return the files of a result that `record` (its artifact.json) names, and the card.

    Training states, logs, hidden files and links are never published.

    Raises:
        CheckpointError: if a file of the record or the card is a link, or its path contains one.
    """
    named_files = {*(record.get("files") or ()), *_ADDED_LATER}
    paths_by_name = {path.relative_to(folder).as_posix(): path for path in published_files(folder)}
    links = sorted(_find_links(folder))
    bad_links = [
        name
        for name in links
        if name in named_files or any(n.startswith(f"{name}/") for n in named_files)
    ]
    if bad_links:
        raise CheckpointError(
            f"{printable(folder / bad_links[0])}: is a link, and links are not followed when a model is "
            "published; put a copy in its place"
        )
    unnamed = {name for name in paths_by_name if name not in named_files} | set(links)
    return ChosenFiles(
        {name: path for name, path in paths_by_name.items() if name in named_files},
        tuple(sorted(unnamed)),
    )


def left_notes(left: tuple[str, ...]) -> Iterator[str]:
    """Yield a note on the files that are not uploaded, if there are any."""
    if left:
        name_list = join_some(map(printable, left), 6)
        yield f"not uploaded, as {RECORD} does not name them: {name_list}"


def _find_links(folder: Path) -> Iterator[str]:
    """Yield the names of all links in a folder without following them."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent) / name
            if path.is_symlink():
                yield path.relative_to(folder).as_posix()

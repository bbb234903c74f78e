"""Preparation of a publication: files are chosen and checked, and the card is completed for the hub."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge import CheckpointError, RecipeError
from emberge.files import JSON_LIMIT, find_user_cache, read_json, read_regular
from emberge.hashes import FileContent, HashCache
from emberge.model_folder import HUB_ID, MODEL_SIGNS, hash_model, list_published_files
from emberge.results import ARTIFACT, list_current_results, read_artifact, require_sound_result
from emberge.wording import hide_folders, join_some
from emberge_evaluate import Scores, read_scores
from emberge_report import (
    MODEL_NAME_COMMENT,
    add_scores,
    read_front_matter,
    read_licence,
    split_card,
)

from emberge_publish.publication import CARD, FileBody, Publication, PublishOptions

_NO_LICENCE = "no licence is stated; state one by --licence ID, in a recipe by `licence: ID`"


def prepare_publication(folder: Path, options: PublishOptions) -> Publication:
    """Return the publication of the model in `folder`, its files chosen and checked, without an upload.

    Raises:
        CheckpointError: if the folder is not a model that a step made, or files changed after the step.
        RecipeError: if the name is not of the form `owner/name`.
    """
    if not HUB_ID.fullmatch(options.name):
        raise RecipeError(
            f"'{options.name}' is no name of a model on a hub; write it as owner/name"
        )
    result = folder.absolute()
    _require_model(result)
    require_sound_result(result)
    record = read_json(result / ARTIFACT)
    chosen, left = choose_files(result.resolve(), record)
    step = str(record.get("step"))
    # The card of several adapters has their scores already; the folder's own weights are the base's.
    is_base = "adapters" in record["details"]
    evaluations = [] if is_base else list(_find_evaluations(result, step))
    text = add_scores(complete_card(_read_card(chosen), step, options), evaluations)
    card = text.encode()
    files: dict[str, FileBody] = {**chosen, CARD: card}
    files[ARTIFACT] = _write_record(record, card)
    licence = options.licence or read_licence(read_front_matter(result))
    unmet = {
        requirement.text: None
        for name, scores in evaluations
        for requirement in scores.list_verdicts(name)
        if not requirement.met
    }
    notes = [f"NOT MET: {requirement}" for requirement in unmet]
    notes += [] if licence else [_NO_LICENCE]
    if left:
        notes.append(f"not uploaded, as {ARTIFACT} does not name them: {join_some(left, 6)}")
    return Publication(options, dict(sorted(files.items())), licence, notes)


def _write_record(record: Mapping[str, Any], card: bytes) -> bytes:
    """Return a result's artifact.json without the publisher's paths and with the hash of the new card."""
    files = {**record["files"], CARD: dataclasses.asdict(FileContent.of_bytes(card))}
    text = json.dumps(hide_folders({**record, "files": files}), indent=2, ensure_ascii=False)
    return f"{text}\n".encode()


def complete_card(text: str, step: str, options: PublishOptions) -> str:
    """Return a model's card with the name on the hub and the publisher's licence, if one is stated.

    `step` is the name by which the card that a run wrote loads the model.
    """
    title = options.name.partition("/")[2]
    text = text or f"# {title}\n\nAn embedding model, made with emberge.\n"
    front, body = split_card(text)
    if options.licence is not None:
        front = "\n".join([*_drop_licence(front), f"license: {options.licence}"])
    body = "\n".join(
        line.removesuffix(MODEL_NAME_COMMENT).replace(f'"{step}"', f'"{options.name}"')
        if line.endswith(MODEL_NAME_COMMENT)
        else line
        for line in body.replace(f"\n# {step}\n", f"\n# {title}\n", 1).split("\n")
    )
    return f"---\n{front}\n---\n{body}" if front else body


def _drop_licence(front: str) -> Iterator[str]:
    """Yield the lines of front matter without the licence, its name and its link."""
    is_dropped = False
    for line in front.splitlines():
        if line[:1] not in (" ", "-"):
            is_dropped = line.startswith("license")
        if not is_dropped:
            yield line


def _read_card(files: Mapping[str, Path]) -> str:
    """Return the text of the card in a result; "" without one."""
    if CARD not in files:
        return ""
    return read_regular(files[CARD], limit=JSON_LIMIT).decode("utf-8", errors="replace")


def _require_model(folder: Path) -> None:
    if not any((folder / sign).is_file() for sign in MODEL_SIGNS):
        raise CheckpointError(
            f"{folder}: is no model: it has neither modules.json nor config.json; name the folder of one"
        )
    if not (folder / ARTIFACT).is_file():
        raise CheckpointError(
            f"{folder}: has no {ARTIFACT}, so nothing says which files are the model's; name the folder of a "
            "step's result or of a merged model"
        )


def _find_evaluations(folder: Path, step: str) -> Iterator[tuple[str, Scores]]:
    """Yield (column, scores) of each evaluation in the same OUT that scored exactly these weights.

    If no column is named after the model's step, columns of models with equal content are taken.
    """
    content = None
    for step_folder in list_current_results(folder.parent):
        artifact = read_artifact(step_folder)
        if artifact is None or artifact.kind != "scores":
            continue
        content = content or hash_model(folder.resolve(), HashCache(find_user_cache()))
        scores = read_scores(step_folder)
        columns = [name for name, one in scores.fingerprints.items() if one == content]
        of_step = [name for name in columns if scores.find_column(name).model == step]
        yield from ((name, scores) for name in of_step or columns)


def choose_files(folder: Path, record: Mapping[str, Any]) -> tuple[dict[str, Path], list[str]]:
    """Return the files of a result that `record` (its artifact.json) names, and the names of others.

    Training states, logs, hidden files and links are never published.

    Raises:
        CheckpointError: if a file of the record or the card is a link, or its path contains one.
    """
    named_files = {*(record.get("files") or ()), CARD, ARTIFACT}
    paths_by_name = {
        path.relative_to(folder).as_posix(): path for path in list_published_files(folder)
    }
    for name in sorted(named_files):
        if (folder / name).resolve() != folder.resolve() / name:
            raise CheckpointError(
                f"{folder / name}: is a link, and links are not followed when a model is published; put a "
                "copy in its place"
            )
    chosen = {name: path for name, path in paths_by_name.items() if name in named_files}
    return chosen, sorted(paths_by_name.keys() - chosen)

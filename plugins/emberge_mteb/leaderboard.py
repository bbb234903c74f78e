"""mteb's leaderboard: a published model's ModelMeta, results folder and training data."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from emberge import CheckpointError, DataError, Leaderboard
from emberge.contracts import BoardEntry

# mteb's own word for a model without a commit.
_NO_REVISION = "no_revision_available"


@dataclass(frozen=True, kw_only=True)
class MtebLeaderboard(Leaderboard):
    """The leaderboard of mteb (Muennighoff et al., 2023, arXiv:2210.07316).

    An entry is a Python file for mteb's register of models, and a folder `results/<model>/<revision>/` in the
    layout of mteb's results repository. Both are checked by reading them back with mteb's own loaders. Only
    results on mteb's own tasks and data are entered. The register lists the training data of many models.

    Example:
        emberge publish out/soup me/soup --mteb board
    """

    def tasks_trained_on(self, model: str) -> frozenset[str] | None:
        from mteb.models.model_implementations import MODEL_REGISTRY

        meta = MODEL_REGISTRY.get(model)
        datasets = meta.get_training_datasets() if meta is not None else None
        return frozenset(datasets) if datasets is not None else None

    def write_entry(self, out: Path, model: Path, entry: BoardEntry) -> list[str]:
        from emberge_mteb.scoring import silence_mteb

        with silence_mteb(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # mteb reads its own older fields
            return _write_entry(out, model, entry)


def _write_entry(out: Path, model: Path, entry: BoardEntry) -> list[str]:
    from mteb.cache import ResultCache

    meta = _build_model_meta(model, entry)
    results = list(_read_results(entry.results))
    cache = ResultCache(out)
    folder = cache.get_task_result_path("any", meta).parent
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(meta.to_dict(), default=str, indent=4)
    (folder / "model_meta.json").write_text(text, encoding="utf-8")
    for result in results:
        result.to_disk(folder / f"{result.task_name}.json")
    register = out / f"{meta.model_name_as_path()}.py"
    register.write_text(_register_source(meta), encoding="utf-8")
    _require_read_back(cache, meta, folder, len(results))
    entry_files = [register, folder / "model_meta.json", *sorted(folder.glob("*.json"))]
    return [path.relative_to(out).as_posix() for path in dict.fromkeys(entry_files)]


def _build_model_meta(model: Path, entry: BoardEntry) -> Any:
    """Return the ModelMeta of a model's folder, validated by mteb.

    Raises:
        CheckpointError: if the folder has no embedding model, or mteb does not accept it.
    """
    from emberge.model_folder import (
        Checkpoint,
        Layout,
        count_parameters,
        read_settings,
        read_trunk_settings,
    )
    from mteb.languages.iso_mappings import _hf_langs_to_iso_lang_scripts
    from mteb.models import ModelMeta, SentenceTransformerEncoderWrapper
    from mteb.types import Licenses
    from pydantic import ValidationError

    layout, checkpoint = Layout.read(model), Checkpoint(model)
    count = count_parameters(checkpoint)
    size = sum(spec.nbytes for spec in checkpoint.specs.values())
    similarity = read_settings(model).get("similarity_fn_name") or "cosine"
    licence = entry.licence
    training_tasks = entry.trained_on
    reads = read_trunk_settings(layout.trunk_folder).get("modality_config") or ()
    try:
        return ModelMeta(
            loader=SentenceTransformerEncoderWrapper,
            name=entry.name,
            revision=entry.revision or _NO_REVISION,
            release_date=entry.date,
            languages=_hf_langs_to_iso_lang_scripts(list(entry.languages) or None),
            n_parameters=count.total,
            n_active_parameters_override=count.computed if count.active < count.total else None,
            n_embedding_parameters=count.active - count.computed,
            memory_usage_mb=round(size / 2**20, 1),
            max_tokens=layout.max_length,
            embed_dim=entry.dimension,
            license=licence if licence in get_args(Licenses) else entry.reference,
            open_weights=True,
            public_training_code=None,
            public_training_data=None,
            framework=["Sentence Transformers", "PyTorch", "safetensors"],
            reference=entry.reference,
            similarity_fn_name=similarity if similarity in ("cosine", "dot") else None,
            use_instructions=any(layout.prompts.values()),
            training_datasets=None if training_tasks is None else set(training_tasks),
            adapted_from=next(iter(entry.bases), None),
            modalities=[kind for kind in ("text", "image", "audio") if kind in reads] or ["text"],
        )
    except ValidationError as error:
        raise CheckpointError(
            f"{model}: mteb does not accept the model's facts: {error}"
        ) from error


def _read_results(files: Iterable[Path]) -> Iterator[Any]:
    """Yield the results on mteb's own tasks, on the data that mteb scores them on."""
    import mteb
    from mteb.results import TaskResult

    for file in files:
        result = TaskResult.from_disk(Path(file))
        try:
            task = mteb.get_task(result.task_name)
        except KeyError:
            continue  # a set of the user's own
        same_data = result.dataset_revision == task.metadata.dataset.get("revision")
        if same_data and set(task.eval_splits) <= set(result.scores):
            yield result


def _register_source(meta: Any) -> str:
    """Return the entry for mteb's register as Python."""
    name = meta.name.partition("/")[2]
    variable = "".join(letter if letter.isalnum() else "_" for letter in name)
    return (
        "from mteb.models import ModelMeta, SentenceTransformerEncoderWrapper\n"
        "from mteb.models.model_meta import ScoringFunction\n\n"
        f"model_{variable} = {meta.to_python()}\n"
    )


def _require_read_back(cache: Any, meta: Any, folder: Path, results: int) -> None:
    """Read all files of the entry back by mteb's own loaders.

    Raises:
        DataError: if mteb reads something else.
    """
    from mteb.models import ModelMeta

    read_meta = ModelMeta.model_validate_json_resolved((folder / "model_meta.json").read_bytes())
    loaded = cache.load_results([meta], validate_and_filter=True, include_remote=False)
    result_count = sum(len(one.task_results) for one in loaded.model_results)
    if read_meta != meta or result_count != results:
        model = "the" if read_meta == meta else "another"
        raise DataError(
            f"{folder}: mteb reads {result_count} of {results} results, and {model} "
            "model; is its release another than the one that wrote them?"
        )

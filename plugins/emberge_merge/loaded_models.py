"""Merges as `SentenceTransformer.merge` takes them: loaded models, and mergekit's methods and parameters."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emberge import RecipeError
from emberge.files import make_folder, working_in
from emberge.recipes import complete_reference
from emberge.wording import count_noun, make_file_name

# Methods of mergekit that have no weights; for the others a weight is 1 by default.
_WITHOUT_WEIGHTS = {"arcee_fusion", "karcher", "model_stock", "nearswap", "passthrough"}
_WITHOUT_WEIGHTS |= {"ram", "ramplus_tl", "sce", "slerp"}


def place_loaded_models(
    out: Path, models: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[Path, Any]]:
    """Return (models with a folder in place of each loaded one, by name; loaded models by folder).

    A model may be an entry of a recipe's `models` (`{"model": model, "weight": 2}`). The folders, which
    `saving_loaded_models` fills, lie in a hidden one next to `out`: `models[0]/NAME`, with the last name of
    the folder or hub id that the model was loaded from. A model that stands twice has one folder.
    """
    folder = out.absolute().parent / f".{out.name}.models"
    paths: dict[int, Path] = {}
    loaded: dict[Path, Any] = {}

    def place(name: str, model: Any) -> Any:
        if isinstance(model, Mapping) and "model" in model:
            return {**model, "model": place(name, model["model"])}
        if not hasattr(model, "save_pretrained"):
            return model
        source = next((m.name_or_path for m in model.modules() if hasattr(m, "name_or_path")), "")
        source_name = make_file_name(Path(source or "loaded").name).replace("+", "-")
        path = paths.setdefault(id(model), folder / name / source_name)
        loaded.setdefault(path, model)
        return path

    return {name: place(name, model) for name, model in models.items()}, loaded


@contextmanager
def saving_loaded_models(loaded: Mapping[Path, Any]) -> Iterator[None]:
    """Save loaded models in their folders, two levels below one; remove that afterwards.

    Raises:
        CheckpointError: if another process merges loaded models there.
    """
    if not loaded:
        yield
        return
    folder = next(iter(loaded)).parents[1]
    with working_in(folder):
        try:
            for path, model in loaded.items():
                shutil.rmtree(path, ignore_errors=True)  # of a call that was killed
                make_folder(path)
                model.save_pretrained(str(path))
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def build_mergekit_config(
    models: Sequence[str | os.PathLike[str]],
    method: str,
    base_model: str | os.PathLike[str] | None,
    parameters: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the config of mergekit for a method and parameters in the form of `SentenceTransformer.merge`.

    A list has a value for each model that is not the base, a mapping a value by the model's number from 0,
    and anything else is one value for all.

    Raises:
        RecipeError: if a list has another length, a share lies outside 0 to 1, or a model is a mapping.
    """
    _require_fractions(parameters)
    names = [_name_for_mergekit(model) for model in models]
    base = None if base_model is None else _name_for_mergekit(base_model)
    if method == "slerp":
        base, parameters = base or names[0], {"t": 0.5, **parameters}
    elif method not in _WITHOUT_WEIGHTS:
        parameters = {"weight": 1.0, **parameters}
    values: list[dict[str, Any]] = [{} for _ in names]
    shared: dict[str, Any] = {}
    others = [number for number, name in enumerate(names) if name != base]
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            by_number = {int(number): one for number, one in value.items()}
        elif isinstance(value, Sequence) and not isinstance(value, str):
            if len(value) != len(others):
                raise RecipeError(
                    f"parameters['{key}']: {count_noun(len(value), 'value')} for "
                    f"{count_noun(len(others), 'model')}"
                )
            by_number = dict(zip(others, value, strict=True))
        else:
            by_number = dict.fromkeys(others, value) if key == "weight" else {}
            shared |= {} if key == "weight" else {key: value}
        for number, one in by_number.items():
            values[number][key] = one
    entries = [{"model": name, "parameters": values[n]} for n, name in enumerate(names)]
    config = {"merge_method": method, "models": entries, "parameters": shared}
    return config if base is None else {**config, "base_model": base}


def _require_fractions(parameters: Mapping[str, Any]) -> None:
    """Require that no share among the parameters, their lists and mappings lies outside 0 to 1."""
    for key in {"density", "t"} & parameters.keys():  # mergekit takes any number
        value = parameters[key]
        values = value.values() if isinstance(value, Mapping) else value
        for one in values if isinstance(values, Iterable) else [values]:
            if isinstance(one, int | float) and not 0 <= one <= 1:
                raise RecipeError(f"parameters['{key}']: {one:g} lies outside 0 to 1")


def _name_for_mergekit(model: str | os.PathLike[str]) -> str:
    if isinstance(model, Mapping):
        raise RecipeError(
            "with a method of mergekit a model is no mapping; its own values are lists, such as "
            "parameters={'weight': [2.0, 1.0]}"
        )
    name = complete_reference(os.fspath(model))
    return str(Path(name).resolve()) if Path(name).is_dir() else name

"""Translation of a mergekit YAML, with one or more documents, into a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge import suggest
from emberge.contracts import TranslatedRecipe

from emberge_mergekit.config.names import ModelName
from emberge_mergekit.config.reading import ConfigValue, Faults, documents
from emberge_mergekit.config.schema import Config, ConfigModel, read_config
from emberge_mergekit.methods import METHODS, Method
from emberge_mergekit.recipe.equivalents import Link
from emberge_mergekit.recipe.planning import PlannedMerge, PlannedModel, plan_part
from emberge_mergekit.recipe.tokens import write_vocabulary
from emberge_mergekit.recipe.writing import Sheet, flow, reference
from emberge_mergekit.strategy import method_named

_SHAPES = ("models", "slices", "modules")
LAST = "merged"
_VOCABULARY = "-vocabulary"


def translate(text: str, path: Path | None) -> TranslatedRecipe | None:
    """Translate a config into a recipe; None for a text that is not a mergekit config.

    Raises:
        RecipeError: if the config has faults; the message has all of them, each with `path:line`.
    """
    if not any(f"{key}:" in text or f'{key}"' in text for key in ("merge_method", *_SHAPES)):
        return None
    faults = Faults(path)
    config_documents = documents(text, faults)
    if not config_documents and not re.search(r"^merge_method\s*:", text, re.MULTILINE):
        return None
    if config_documents and not any(_is_mergekit(document) for document in config_documents):
        return None
    if not config_documents:
        faults.raise_all()
    return _Translation(config_documents, faults).recipe()


def _is_mergekit(document: ConfigValue) -> bool:
    """Return whether the document has the keys of a mergekit config and, unlike a recipe, no `steps`."""
    if not isinstance(document.value, dict) or "steps" in document.value:
        return False
    return "merge_method" in document.value or any(key in document.value for key in _SHAPES)


@dataclass(frozen=True)
class _Merge:
    """One document with its planned merges and the id of the step that it becomes."""

    id: str
    config: Config
    method: Method
    parts: tuple[PlannedMerge, ...]


class _Translation:
    def __init__(self, documents: Sequence[ConfigValue], faults: Faults) -> None:
        self.faults = faults
        configs, self.sound = [], []
        for document in documents:
            count_before = len(faults.problems)
            configs.append(read_config(_require_mapping(document, faults), faults))
            self.sound.append(len(faults.problems) == count_before)
        self.ids = _name_steps(configs, faults)
        steps = {
            config.name: self.ids[i] for i, config in enumerate(configs) if config.name is not None
        }
        self.references = ModelReferences(faults, steps)
        self.configs = configs
        self.step_by_model: dict[tuple[str | None, ...], str] = {}
        """For a model that a step of its own must merge first: the reference to that step."""

    def recipe(self) -> TranslatedRecipe:
        merges = [self._plan_merge(i, config) for i, config in enumerate(self.configs)]
        _refuse_cycles(self.configs, self.faults)
        sheet = Sheet()
        name = self.faults.path.name if self.faults.path is not None else "a config"
        sheet.comment(0, f"From {name}, a config of mergekit.")
        sheet.add(0, "steps:")
        for merge in merges:
            if merge is not None:
                self._write_merge(sheet, merge)
        self.faults.raise_all()
        return sheet.recipe()

    def _plan_merge(self, index: int, config: Config) -> _Merge | None:
        method = self._find_method(config) if config.parts else None
        if method is None:
            return None
        parts = [
            plan_part(part, method, self.faults, sliced=config.sliced, sound=self.sound[index])
            for part in config.parts
        ]
        planned = tuple(part for part in parts if part is not None)
        if len(planned) < len(parts) or not planned:
            return None
        return _Merge(self.ids[index], config, method, planned)

    def _find_method(self, config: Config) -> Method | None:
        line = config.lines.get("merge_method", config.line)
        if not config.method:
            self.faults.add(line, "a config needs 'merge_method'")
            return None
        method = method_named(config.method)
        if method is None:
            hint = suggest(config.method, METHODS) or f"; there are {', '.join(METHODS)}"
            self.faults.add(line, f"there is no merge method '{config.method}'{hint}")
        return method

    # ── a merge as lines ────────────────────────────────────────────────────────────────────────

    def _write_merge(self, sheet: Sheet, merge: _Merge) -> None:
        config = merge.config
        self.step_by_model = self._write_preparation(sheet, merge)
        if config.name is not None and config.name != merge.id:
            sheet.comment(1, f"mergekit's config calls it {config.name!r}")
        sheet.add(1, f"{merge.id}:", config.line)
        sheet.add(2, "merge:", config.line)
        shared_links = merge.parts[0].links
        if config.sliced:
            sheet.add(3, "slices:", config.lines.get("slices", config.line))
            for part in merge.parts:
                self._write_slice(sheet, part, shared_links)
        else:
            (part,) = merge.parts
            self._write_models(sheet, 3, part)
            if part.base is not None:
                line = config.lines.get("base_model", part.base.line)
                sheet.add(3, f"base: {self._refer_to(part.base.model)}", line)
        if config.tokenizer is not None:
            sheet.add(3, f"vocabulary: ${merge.id}{_VOCABULARY}", config.line)
        _write_notes(sheet, 3, [note for part in merge.parts for note in part.notes])
        sheet.strategy(3, shared_links, config.lines["merge_method"])
        self._write_dtypes(sheet, config)

    def _write_preparation(self, sheet: Sheet, merge: _Merge) -> dict[tuple[str | None, ...], str]:
        """Write the steps that the merge needs first, and return the step by model.

        They are the vocabulary, and a merge of each adapter into its model.
        """
        config = merge.config
        step_by_model: dict[tuple[str | None, ...], str] = {}
        if config.tokenizer is None:
            return step_by_model
        for number, model in enumerate(m for m in config.models if m.adapter is not None):
            step_by_model[model.key] = f"${merge.id}-model-{number}"
            sheet.add(1, f"{merge.id}-model-{number}:", model.line)
            sheet.add(2, "merge:")
            sheet.add(3, f"models: [{reference(self.references.of(model))}]")
            sheet.add(3, "strategy: passthrough")
        self.step_by_model = step_by_model
        name = f"{merge.id}{_VOCABULARY}"
        write_vocabulary(sheet, name, config, self._refer_to, self.faults)
        return step_by_model

    def _write_slice(self, sheet: Sheet, part: PlannedMerge, shared_links: Sequence[Link]) -> None:
        for number, model in enumerate(part.models):
            if number == 0:
                sheet.add(4, "- models:", part.line)
            sheet.add(6, f"- {self._format_model(model)}", model.input.line)
        if part.base is not None:
            base = f"{{model: {self._refer_to(part.base.model)}, {_write_layers(part.base)}}}"
            sheet.add(5, f"base: {base}", part.base.line)
        if not _have_same_links(part.links, shared_links):
            sheet.strategy(5, part.links, part.line)

    def _write_models(self, sheet: Sheet, depth: int, part: PlannedMerge) -> None:
        sheet.add(depth, "models:", part.line)
        for model in part.models:
            sheet.add(depth + 1, f"- {self._format_model(model)}", model.input.line)

    def _format_model(self, model: PlannedModel) -> str:
        reference_text = self._refer_to(model.input.model)
        if model.weight is None and not model.options and model.input.layers is None:
            return reference_text
        entries = [f"model: {reference_text}"]
        if model.input.layers is not None:
            entries.append(_write_layers(model.input))
        if model.weight is not None:
            entries.append(f"weight: {flow(model.weight)}")
        if model.options:
            entries.append(f"options: {flow(model.options)}")
        return "{" + ", ".join(entries) + "}"

    def _refer_to(self, model: ModelName) -> str:
        return self.step_by_model.get(model.key) or reference(self.references.of(model))

    def _write_dtypes(self, sheet: Sheet, config: Config) -> None:
        stored = config.out_dtype or config.dtype
        if config.dtype in ("bfloat16", "float16"):
            sheet.comment(
                3, f"mergekit computes in {config.dtype}; here it is rounded to only once"
            )
        if config.dtype == "float64":
            sheet.add(3, "dtype: float64", config.lines["dtype"])
        if stored is not None:
            key = "out_dtype" if config.out_dtype else "dtype"
            sheet.add(3, f"out_dtype: {stored}", config.lines[key])


def _write_layers(model: ConfigModel) -> str:
    assert model.layers is not None
    return f"layers: [{model.layers[0]}, {model.layers[1]}]"


def _have_same_links(first: Sequence[Link], second: Sequence[Link]) -> bool:
    """Return whether two strategies have the same links with the same options."""
    return [(link.name, flow(link.options)) for link in first] == [
        (link.name, flow(link.options)) for link in second
    ]


def _write_notes(sheet: Sheet, depth: int, notes: Sequence[str]) -> None:
    for note in dict.fromkeys(notes):
        sheet.comment(depth, note)


def _require_mapping(document: ConfigValue, faults: Faults) -> ConfigValue:
    if not isinstance(document.value, dict):
        faults.add(document.line, f"a config is a mapping, not {document.words}")
        return ConfigValue({}, document.line, document.label)
    return document


def _name_steps(configs: Sequence[Config], faults: Faults) -> list[str]:
    """Return a unique step id for each document: its name with invalid characters as `-`, else `merged`."""
    ids: list[str] = []
    names: dict[str | None, int] = {}
    for config in configs:
        if config.name in names:
            description = "without a name" if config.name is None else f"called '{config.name}'"
            first_id = names[config.name]
            faults.add(config.line, f"two configs are {description}, the first at line {first_id}")
        names[config.name] = config.line
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", config.name or LAST).strip("-") or LAST
        taken_ids, number = {i.casefold() for i in ids}, 2
        unique = name
        while unique.casefold() in taken_ids:
            unique, number = f"{name}-{number}", number + 1
        ids.append(unique)
    return ids


def _refuse_cycles(configs: Sequence[Config], faults: Faults) -> None:
    """Report configs that use themselves as a model, directly or through other configs."""
    configs_by_name = {config.name: config for config in configs if config.name is not None}
    models_by_name = {
        name: [m for m in config.models if m.path in configs_by_name]
        for name, config in configs_by_name.items()
    }

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        if start == goal:
            return True
        seen.add(start)
        return any(reaches(m.path, goal, seen) for m in models_by_name[start] if m.path not in seen)

    for name, models in models_by_name.items():
        for model in models:
            if model.path == name:
                faults.add(model.line, f"config '{name}' names itself as a model")
            elif reaches(model.path, name, set()):
                faults.add(model.line, f"configs '{name}' and '{model.path}' need one another")


class ModelReferences:
    """References for mergekit's names: `$step`, `./folder`, `owner/name@revision`, with adapters.

    mergekit reads a name as a folder if that folder exists in the current folder, and as a hub id otherwise.
    A recipe's folders are relative to the recipe. `steps` maps the names of configs to step ids.
    """

    def __init__(self, faults: Faults, steps: Mapping[str, str]) -> None:
        self.faults = faults
        self.steps = steps
        self.config_folder = faults.path.parent if faults.path is not None else Path()

    def of(self, model: ModelName) -> str:
        """Return a recipe's reference to the model, and report problems of its name."""
        text = self._refer_to_path(model.path, model.revision, model.line)
        if model.adapter is not None:
            adapter = self._refer_to_path(model.adapter, model.adapter_revision, model.line)
            text = f"{text}+{adapter}"
        return text

    def _refer_to_path(self, path: str, revision: str | None, line: int) -> str:
        if path in self.steps:
            self._refuse_revision(path, revision, line)
            return f"${self.steps[path]}"
        self._refuse_file(path, line)
        folder = self._find_folder(path, line)
        if folder is not None:
            self._refuse_revision(path, revision, line)
            return folder.replace("$", "$$")
        text = f"{path}@{revision}" if revision else path
        return text.replace("$", "$$")

    def _find_folder(self, path: str, line: int) -> str | None:
        """Return the folder's path as a recipe writes it; None for a name that is not a folder."""
        if Path(path).is_absolute():
            return path
        is_in_work_folder, is_beside_config = (
            Path(path).is_dir(),
            (self.config_folder / path).is_dir(),
        )
        if (
            is_in_work_folder
            and is_beside_config
            and not Path(path).samefile(self.config_folder / path)
        ):
            self.faults.add(
                line,
                f"'{path}' is a folder beside the config and another one where the command is run; "
                "write the whole path of the one that you mean",
            )
        relative_path = (
            path if path.startswith(("./", "../")) or path in (".", "..") else f"./{path}"
        )
        if is_beside_config:
            return relative_path
        if is_in_work_folder:
            return str(Path(path).absolute())
        return path if relative_path == path else None

    def _refuse_file(self, path: str, line: int) -> None:
        file = self.config_folder / path
        if not file.is_file():
            return
        is_this_config = self.faults.path is not None and file.samefile(self.faults.path)
        description = "is this config itself" if is_this_config else "is a file"
        self.faults.add(line, f"'{path}' {description}; a model is a folder, or one of the hub's")

    def _refuse_revision(self, path: str, revision: str | None, line: int) -> None:
        if revision is not None:
            self.faults.add(
                line, f"'{path}' is not on the hub and has no revision '{revision}'; leave it out"
            )

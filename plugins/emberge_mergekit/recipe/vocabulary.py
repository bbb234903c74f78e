"""Step that makes one vocabulary for several models with mergekit's own tokenizer code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import (
    Artifact,
    CheckpointError,
    EmbergeError,
    Model,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
    suggest,
)
from emberge.model_folder import Checkpoint

from emberge_mergekit.recipe.vocabulary_options import VocabularyOptions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MergekitVocabulary(VocabularyOptions, Step):
    """Make one vocabulary for several models, and embeddings for it, by mergekit's own tokenizer code.

    A merge of the same models names this step as its `vocabulary`. If a model lacks a token, it gets the
    embedding of the base or of the only model that has the token, otherwise the mean over the models that
    have it. `tokens` has other rules for single tokens. `dtype` is the type of the embeddings, by default the
    widest type of the models.

    Example:
        vocabulary:
          mergekit_vocabulary: {models: [./a, ./b], base: ./base, source: union}
    """

    produces = "file"

    def identity(self) -> str:
        return f"mergekit {version('mergekit')}, tokenizers {version('tokenizers')}"

    def check(self, context: Preflight) -> Iterable[Problem]:
        from emberge_mergekit.config.chat import fault_of

        listed_texts = {reference.text for reference in self.models}
        for option, reference in self._list_references():
            if reference.text not in listed_texts:
                yield context.problem(f"'{reference.text}' is not among the models", option)
        fault = fault_of(self.chat_template)
        if fault:
            yield context.problem(fault, "chat_template")
        for number, reference in enumerate(self.models):
            folder = context.model(reference)
            if context.adapter(reference) is not None:
                yield context.problem(_refuse_adapter(reference.text), f"models.{number}")
            elif folder is not None and not _has_tokenizer(folder):
                yield context.problem(f"'{reference.text}' has no tokenizer", f"models.{number}")
        yield from self._check_rules(context)

    def _check_rules(self, context: Preflight) -> Iterable[Problem]:
        """Yield a problem for each rule whose model lacks the token that the rule names."""
        for token, rule in self.tokens.items():
            folder = context.model(rule.model) if rule.model is not None else None
            if folder is None or rule.model is None:
                continue
            if rule.token_id is not None:
                rows = rows_of(folder)
                if rows is not None and not 0 <= rule.token_id < rows:
                    message = (
                        f"'{rule.model.text}' has embeddings 0 to {rows - 1}, not {rule.token_id}"
                    )
                    yield context.problem(message, f"tokens.{token}")
                continue
            tokens, token_text = known_tokens(folder), rule.token or token
            if tokens is not None and token_text not in tokens:
                hint = suggest(token_text, sorted(tokens))
                message = f"'{rule.model.text}' has no token '{token_text}'{hint}"
                yield context.problem(message, f"tokens.{token}")

    def _list_references(self) -> Iterable[tuple[str, ModelRef]]:
        if self.base is not None:
            yield "base", self.base
        if isinstance(self.source, ModelRef):
            yield "source", self.source
        for token, rule in self.tokens.items():
            if rule.model is not None:
                yield f"tokens.{token}", rule.model

    def run(self, workspace: Workspace) -> Artifact:
        from safetensors.torch import save_file

        from emberge_mergekit.recipe.embeddings import Vocabulary, save_template, vocabulary_tensors

        models = {reference.text: workspace.model(reference) for reference in self.models}
        for text, model in models.items():
            if model.adapter is not None:
                raise CheckpointError(_refuse_adapter(text))
        if self.source is None:
            save_template(self, {text: m.folder for text, m in models.items()}, workspace.folder)
            return _finish_folder(workspace.folder, None, None, models)
        vocabulary = Vocabulary.build(self, {text: m.folder for text, m in models.items()})
        tensors_by_model: dict[str, dict[str, Tensor]] = {text: {} for text in models}
        for name, tensors in vocabulary_tensors(models, self.dtype):
            for text, tensor in vocabulary.aligned(name, tensors).items():
                tensors_by_model[text][name] = tensor.contiguous()
            workspace.progress(len(tensors_by_model), len(models), "models", name)
        files = {m.fingerprint: f"{i}.safetensors" for i, m in enumerate(models.values())}
        for file, tensors in zip(files.values(), tensors_by_model.values(), strict=True):
            save_file(tensors, workspace.folder / file)
        vocabulary.save_tokenizer(workspace.folder)
        return _finish_folder(workspace.folder, vocabulary.size, files, models)


def _finish_folder(
    folder: Path, size: int | None, files: Mapping[str, str] | None, models: Mapping[str, Model]
) -> Artifact:
    """Write the file that lists the vocabulary's size and files, and return the folder as an artifact."""
    from emberge.merging import SuppliedVocabulary

    text = json.dumps({"size": size, "models": files}, indent=2)
    (folder / SuppliedVocabulary.FILE).write_text(f"{text}\n", encoding="utf-8")
    fingerprints = {text: model.fingerprint for text, model in models.items()}
    return Artifact(
        kind="file", parents=tuple(models), details={"tokens": size, "models": fingerprints}
    )


def _refuse_adapter(text: str) -> str:
    return (
        f"'{text}' is an adapter on its base, whose embeddings stand in no file; make one model of them "
        "by a merge step of its own, with the strategy 'passthrough'"
    )


def _has_tokenizer(model_folder: Path) -> bool:
    from emberge.model_folder import Checkpoint

    folders = {model_folder, Checkpoint(model_folder).trunk}
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt")
    return any((folder / name).is_file() for folder in folders for name in names)


def known_tokens(folder: Path) -> set[str] | None:
    """Return the tokens in a folder's tokenizer.json; None if it is missing or has another form."""
    trunk = Checkpoint(folder).trunk
    try:
        content: Any = json.loads((trunk / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        # A unigram tokenizer lists pairs of a token and its score, others a mapping of tokens to ids.
        token_texts = (
            vocabulary if isinstance(vocabulary, dict) else [token for token, _ in vocabulary]
        )
        added = {entry["content"] for entry in content.get("added_tokens") or ()}
        return {*token_texts, *added, *_list_added(trunk / "tokenizer_config.json")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _list_added(path: Path) -> Iterator[str]:
    """Yield every text in a tokenizer's settings; texts that are tokens are added when it is loaded."""
    if path.is_file():
        yield from _list_texts(json.loads(path.read_text(encoding="utf-8")))


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(item)


def rows_of(folder: Path) -> int | None:
    """Return the number of a model's token embeddings; None if its weights cannot be read."""
    from emberge.tensor_names import is_vocabulary

    try:
        specs = Checkpoint(folder).names.specs
    except EmbergeError:
        return None
    return next((spec.shape[0] for name, spec in specs.items() if is_vocabulary(name)), None)

"""Plan of a composed model from configs, tokenizers and headers: tensors, files, conflicts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.merging import TokenPlan, VocabularyPolicy, align_tokens
from emberge.model_folder import Checkpoint, JoinedFacts, ModelPair
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import TensorNames, is_vocabulary
from emberge_encoder import Layout, is_causal, write_modalities

from emberge_bidirlm.as_encoder import build_encoder_layout, load_trunk_config
from emberge_bidirlm.composed_class import (
    TRUNK_PREFIX,
    ComposedClass,
    RopeFrom,
    choose_class,
    compute_rope_parameters,
)
from emberge_bidirlm.owned_rows import build_owned_rows
from emberge_bidirlm.processors import (
    REPLACED_FILES,
    build_chat_template,
    build_processor_config,
    build_tokenizer_config,
    list_token_names,
)
from emberge_bidirlm.specialist import Specialist, TowerKind

_MEDIA_BY_TOWER: Mapping[TowerKind, str] = {"vision": "image", "audio": "audio"}
_TOKEN_REMEDY = (
    "specialists keep their tokens where they are, so choose models that agree on that id, or give the token "
    "of one of them another id"
)


@dataclass(frozen=True, slots=True)
class ComposedTensor:
    """One tensor of the result: its name in the result, its source tensor, and the source model's name."""

    name: str
    spec: TensorSpec
    source: str


@dataclass(frozen=True)
class Composition:
    """Plan of one encoder from a text model and specialists; `model_names` are their names in the recipe.

    Raises:
        CheckpointError: if the models do not fit each other; only configs, tokenizers and headers are read to
            check this.
    """

    text: Checkpoint
    specialists: Mapping[TowerKind, Specialist]
    rope_from: RopeFrom | None
    model_names: Mapping[str, str]
    files: dict[str, Any] = field(init=False, compare=False, repr=False)
    """Content of the result's config, processor and template files, by path."""

    def __post_init__(self) -> None:
        if is_causal(self.text.config):
            raise CheckpointError(
                f"{self.text.folder}: attends to earlier tokens alone; make an encoder of it first, with a "
                "step as_encoder"
            )
        for specialist in self.specialists.values():
            self._compare(specialist)
        object.__setattr__(self, "files", self._build_files())

    def _compare(self, specialist: Specialist) -> None:
        """Refuse a specialist whose tower was trained for a different trunk."""
        names = f"'{self.model_names['text']}' and '{self.model_names[specialist.kind]}': "
        pair = ModelPair(self.text, specialist.checkpoint)
        differences = list(pair.find_trunk_differences(positions=False))
        if differences:
            raise CheckpointError(
                f"{names}{differences[0]}; a tower fits the trunk that it was trained with, so choose models "
                "of one family and size"
            )
        ropes = list(pair.find_trunk_differences())
        if ropes and self.rope_from is None:
            raise CheckpointError(f"{names}{ropes[0]}; choose whose counts with 'rope_from'")
        width = int(load_trunk_config(self.text).hidden_size)
        if specialist.width != width:
            raise CheckpointError(
                f"{names}the projector of one gives vectors of {specialist.width} numbers, and the trunk "
                f"of the other has {width}; get the models again"
            )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """A line for each fact that a specialist states, and the text model does not or differently."""
        return tuple(JoinedFacts.of(self.text, self.checkpoints, chosen=True, towers=True).warnings)

    @cached_property
    def composed_class(self) -> ComposedClass:
        """The class of the composed model."""
        return choose_class(self.specialists)

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        """All models by their names in the recipe, the text model first."""
        specialist_checkpoints = {
            self.model_names[kind]: specialist.checkpoint
            for kind, specialist in self.specialists.items()
        }
        return {self.model_names["text"]: self.text, **specialist_checkpoints}

    @cached_property
    def trunk(self) -> TensorNames:
        """The text model's trunk by canonical names."""
        return self.text.tensor_names.select_text_trunk()

    @cached_property
    def trunks(self) -> dict[str, TensorNames]:
        """The trunks of the models with local weights, by the recipe's names."""
        by_name = {self.model_names["text"]: self.trunk} if self.text.has_weights else {}
        for kind, specialist in self.specialists.items():
            if specialist.checkpoint.has_weights:
                by_name[self.model_names[kind]] = specialist.trunk
        return by_name

    @cached_property
    def tokens(self) -> TokenPlan:
        """The joined vocabulary."""
        return join_tokens(self.checkpoints, self.trunks)

    @property
    def rows(self) -> int:
        """The number of rows of the composed model's embeddings."""
        embedding = self.trunk.find_embedding() if self.text.has_weights else None
        size = (
            embedding.shape[0]
            if embedding is not None
            else int(load_trunk_config(self.text).vocab_size)
        )
        return self.tokens.rows if self.tokens.rows is not None else size

    @cached_property
    def rope(self) -> dict[str, Any]:
        """The parameters of the composed model's rotary positions."""
        return compute_rope_parameters(self.text, self.specialists.get("vision"), self.rope_from)

    @cached_property
    def tensors(self) -> list[ComposedTensor]:
        """The tensors of the trunk, of the modules after it, and of the towers."""
        text, modules = self.model_names["text"], tuple(filter(None, self.text.folder_by_prefix))
        tensors = []
        for name, spec in self.trunk.specs.items():
            joined = self._join_embeddings(spec) if is_vocabulary(name) else spec
            tensors.append(ComposedTensor(TRUNK_PREFIX + name, joined, text))
        for name in self.trunk.left_out if modules else ():
            if name.startswith(modules):
                tensors.append(ComposedTensor(name, self.text.specs[name], text))
        for kind, specialist in self.specialists.items():
            for canonical, spec in specialist.tower.items():
                name = self.composed_class.rename_tensor(canonical)
                tensors.append(ComposedTensor(name, spec, self.model_names[kind]))
        return tensors

    def _join_embeddings(self, text_embedding: TensorSpec) -> TensorSpec:
        """Return the embeddings of the joined vocabulary; `text_embedding` are the text model's."""
        tokens = self.tokens
        found = [
            (trunk.find_embedding(), tokens.row_maps.get(name))
            for name, trunk in self.trunks.items()
        ]
        sources = [(spec, row_map) for spec, row_map in found if spec is not None and row_map]
        if tokens.rows is None or not sources:
            return text_embedding
        return build_owned_rows(sources, tokens.rows)

    def _build_files(self) -> dict[str, Any]:
        names = list_token_names(self.specialists)
        contents: dict[str, Any] = {
            "config.json": self.composed_class.build_config(self.text, self.rope, self.rows),
            "processor_config.json": build_processor_config(
                self.specialists, self.composed_class.processor
            ),
            "chat_template.jinja": build_chat_template(names),
        }
        return {self.text.locate_in_trunk(name): content for name, content in contents.items()}

    def complete_result(self, folder: Path) -> None:
        """Write the modules and the tokenizer into an otherwise finished result."""
        trunk = folder / self.text.folder_by_prefix[""]
        self.tokens.write(folder, trunk)
        path = trunk / "tokenizer_config.json"
        names = list_token_names(self.specialists)
        path.write_text(json.dumps(build_tokenizer_config(path, names), indent=2), encoding="utf-8")
        for name in REPLACED_FILES:
            if self.text.locate_in_trunk(name) not in self.files:
                (trunk / name).unlink(missing_ok=True)
        layout = Layout.read(self.text.folder)
        if layout.bare:
            layout = build_encoder_layout(self.text)
        layout.write(folder, int(load_trunk_config(self.text).hidden_size))
        write_modalities(folder, ["text", *(_MEDIA_BY_TOWER[kind] for kind in self.specialists)])

    @property
    def key(self) -> str:
        """A hash of everything, except the models' content, that decides the result's bytes."""
        facts = [self.files, self.tokens.digest, sorted(self.model_names)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def join_tokens(models: Mapping[str, Checkpoint], names: Mapping[str, TensorNames]) -> TokenPlan:
    """Return the joined vocabulary of a composed model; the first of `models` is the text model.

    Every token keeps its id. `names` has the tensor names of the models whose weights are local.

    Raises:
        CheckpointError: if two tokens have one id, or one token two ids; the message names both.
    """
    first = next(iter(models))
    plan = align_tokens(
        VocabularyPolicy(),
        models[first],
        models,
        names,
        names.get(first),
        models=list(models),
        remedy=_TOKEN_REMEDY,
    )
    if plan.problems:
        raise CheckpointError("\n".join(map(str, plan.problems)))
    return plan

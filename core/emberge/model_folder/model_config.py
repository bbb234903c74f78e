"""The config.json of a model: its text trunk, the defaults of transformers' classes, the longest text."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import read_object_if_any
from emberge.model_folder.st_layout import read_trunk_settings
from emberge.tensor_files import TensorSpec

# Names that configs have for the number of layers.
_LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Configs inside those of models with more than text, the outer ones first.
_NESTED_CONFIG_KEYS = ("thinker_config", "text_config", "language_config", "llm_config")
# Names that configs have for the number of experts of a layer.
_EXPERT_COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# Keys that only place images among positions; text has the same position on every axis.
_IMAGE_ROPE_KEYS = frozenset({"mrope_section", "mrope_interleaved", "type"})
# A tokenizer without a limit has 1e30.
_LEAST_BOUNDLESS_LENGTH = 1_000_000
# Names of tables with one row for each position of a text; a text cannot be longer than its table.
_POSITION_TABLE = re.compile(
    r"^(?!.*(?:audio|vis)).*\b(?:position_embeddings|embed_positions|wpe)\.weight$"
)
# Classes that count positions from the id of their padding token + 1, as fairseq does.
_TYPES_THAT_COUNT_FROM_PADDING = frozenset(
    {
        *("roberta", "roberta-prelayernorm", "camembert", "xlm-roberta", "xlm-roberta-xl", "xmod"),
        *("data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke"),
        *("markuplm", "mpnet"),
    }
)
_FAIRSEQ_PADDING_ID = 1


@dataclass(frozen=True)
class TrunkConfig:
    """The part of a model's config.json that describes its text trunk; `whole` is the content of the file."""

    whole: Mapping[str, Any]

    @functools.cached_property
    def stated(self) -> Mapping[str, Any]:
        """The innermost config for text, or the whole config if none is nested in it."""
        return find_trunk_config(self.whole)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The defaults of the model type's class."""
        return read_class_defaults(str(self.stated.get("model_type")))

    @functools.cached_property
    def values(self) -> Mapping[str, Any]:
        """The stated values, and for all other keys the defaults of the model type's class."""
        return {**self.defaults, **self.stated}

    @property
    def layer_count(self) -> int | None:
        """The number of layers; None if neither the config nor the class has one."""
        count = next((self.values[key] for key in _LAYER_COUNT_KEYS if key in self.values), None)
        return count if isinstance(count, int) else None

    @property
    def layer_count_key(self) -> str:
        """The key under which the config states its number of layers, or the usual key."""
        return next((key for key in _LAYER_COUNT_KEYS if key in self.stated), _LAYER_COUNT_KEYS[0])

    @property
    def expert_count(self) -> int:
        """The number of experts in a layer; 0 for a dense model."""
        numbers = [
            config.get(key) for config in (self.whole, self.stated) for key in _EXPERT_COUNT_KEYS
        ]
        return max((number for number in numbers if isinstance(number, int)), default=0)

    @property
    def rope(self) -> dict[str, Any]:
        """The options of rotary positions, as `read_rope_options` returns them."""
        return read_rope_options(self.stated)

    def change(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole config with changed keys of the text trunk."""
        return change_trunk_config(self.whole, changes)


def find_trunk_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a model's text trunk: the innermost one for text, or the config itself."""
    inner = next((key for key in _NESTED_CONFIG_KEYS if isinstance(config.get(key), dict)), None)
    return config if inner is None else find_trunk_config(config[inner])


def change_trunk_config(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole config with changed keys of its text trunk, which may be nested."""
    inner = next((key for key in _NESTED_CONFIG_KEYS if isinstance(config.get(key), dict)), None)
    if inner is None:
        return {**config, **changes}
    return {**config, inner: change_trunk_config(config[inner], changes)}


def read_rope_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a text trunk's rotary positions, in one form for all releases.

    Options that the config does not state, and those of positions in images, are left out.
    """
    config = find_trunk_config(config)
    stated_options = config.get("rope_parameters") or config.get("rope_scaling") or {}
    options = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    rope_type = stated_options.get("rope_type", stated_options.get("type", "default"))
    options["rope_type"] = "default" if rope_type == "mrope" else rope_type
    return options | {
        k: v for k, v in stated_options.items() if k not in {*_IMAGE_ROPE_KEYS, "rope_type"}
    }


@functools.cache
def read_class_defaults(model_type: str) -> Mapping[str, Any]:
    """Return the plain default values of the transformers config class of a `model_type`.

    They are read from the source, as importing the class costs seconds. For an unknown type there are none.
    """
    name = model_type.replace("-", "_")
    spec = importlib.util.find_spec("transformers") if name.isidentifier() else None
    roots = (spec.submodule_search_locations or ()) if spec is not None else ()
    files = [Path(root) / f"models/{name}/configuration_{name}.py" for root in roots]
    sources = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    for statement in ast.parse("\n".join(sources)).body:
        body = statement.body if isinstance(statement, ast.ClassDef) else []
        assigned = [ast.unparse(line) for line in body if isinstance(line, ast.Assign)]
        if f"model_type = {model_type!r}" in assigned:
            return {
                line.target.id: line.value.value
                for line in body
                if isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(line.value, ast.Constant)
            }
    return {}


@dataclass(frozen=True, slots=True)
class TextLimit:
    """Limits of the number of tokens of a text, for the transformer in the folder `trunk`.

    `stated` is the length in sentence_bert_config.json, else the lesser of those in tokenizer_config.json and
    config.json. `positions` is the number of tokens for which the table of positions has rows; None without a
    table. RoBERTa and its descendants lose the rows up to their padding id.
    """

    trunk: Path
    stated: int | None
    positions: int | None

    @classmethod
    def read(cls, folder: Path) -> TextLimit:
        """Return the limits of a model's or a transformer's folder, from configs and headers of weights."""
        return cls.of(Checkpoint(folder))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> TextLimit:
        """Return the limits of a model, from configs and headers of weights.

        Raises:
            CheckpointError: if a config cannot be read.
        """
        config = TrunkConfig(checkpoint.config)
        # T5's old configs have an `n_positions` that its class ignores.
        names = {"max_position_embeddings", *({"n_positions"} & {*config.defaults})}
        numbers = [config.values.get(name) for name in names]
        sizes = [n for n in numbers if isinstance(n, int) and n > 0]  # XLNet states -1
        limits = [read_trunk_settings(checkpoint.trunk).get("max_seq_length")]
        if limits[0] is None:
            tokenizer = read_object_if_any(checkpoint.trunk / "tokenizer_config.json")
            limits = [tokenizer.get("model_max_length"), *sizes]
        known = [
            n for n in limits if isinstance(n, int | float) and 0 < n < _LEAST_BOUNDLESS_LENGTH
        ]
        specs: Iterable[TensorSpec] = ()
        with suppress(CheckpointError):  # the reader of the weights raises it
            specs = checkpoint.specs.values()
        rows = next((s.shape[0] for s in specs if _POSITION_TABLE.match(s.name)), None)
        # Some classes have rows that they do not use.
        positions = None if rows is None else min([rows, *sizes]) - _count_lost_rows(config.values)
        return cls(checkpoint.trunk, int(min(known)) if known else None, positions)

    @property
    def longest(self) -> int | None:
        """The number of tokens after which a text is cut; None if nothing limits it."""
        return min((n for n in (self.stated, self.positions) if n is not None), default=None)

    @property
    def is_overstated(self) -> bool:
        """True if the folder states more tokens than the model has positions for."""
        return self.stated is not None and self.stated != self.longest

    def describe_problems(self, *lengths: int | None) -> list[str]:
        """Return a problem if the longest of some numbers of tokens exceeds the positions, else nothing."""
        longest = max((length for length in lengths if length is not None), default=0)
        if self.positions is None or longest <= self.positions:
            return []
        return [
            f"{self.trunk / 'config.json'}: the model has positions for {self.positions:,} tokens of a text, "
            f"and a text may have {longest:,}; set max_length to at most {self.positions:,}"
        ]

    def require(self, *lengths: int | None) -> None:
        """Require positions for the longest of some numbers of tokens.

        Raises:
            CheckpointError: if there are too few; the message names the option.
        """
        for problem in self.describe_problems(*lengths):
            raise CheckpointError(problem)


def _count_lost_rows(config: Mapping[str, Any]) -> int:
    """Return the number of rows of a table of positions that come before a text's first token."""
    model_type = str(config.get("model_type"))
    if model_type not in _TYPES_THAT_COUNT_FROM_PADDING:
        return 0
    pad = config.get("pad_token_id")
    # MPNet's class has a constant.
    return 1 + (pad if isinstance(pad, int) and model_type != "mpnet" else _FAIRSEQ_PADDING_ID)

"""The longest text that a transformer reads, from the files of its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import read_object_if_any
from emberge.model_folder.model_config import find_trunk_config, read_class_defaults
from emberge.model_folder.st_layout import read_trunk_settings

# A tokenizer without a limit has 1e30.
_NO_LIMIT = 1_000_000
# Names of tables with one row for each position of a text; a text cannot be longer than its table.
_POSITION_TABLE = re.compile(
    r"^(?!.*(?:audio|vis)).*\b(?:position_embeddings|embed_positions|wpe)\.weight$"
)
# Classes that count positions from the id of their padding token + 1, as fairseq does.
_COUNT_FROM_PADDING = frozenset(
    {
        *("roberta", "roberta-prelayernorm", "camembert", "xlm-roberta", "xlm-roberta-xl", "xmod"),
        *("data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke"),
        *("markuplm", "mpnet"),
    }
)
_FAIRSEQ_PADDING = 1


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
        trunk = checkpoint.trunk
        config = _with_defaults(find_trunk_config(checkpoint.config))
        settings = read_trunk_settings(trunk)
        tokenizer = read_object_if_any(trunk / "tokenizer_config.json")
        names = ("max_position_embeddings", "n_positions")
        numbers = [config.get(name) for name in names]
        sizes = [n for n in numbers if isinstance(n, int) and n > 0]  # XLNet states -1
        limits = [settings.get("max_seq_length")]
        if limits[0] is None:
            limits = [tokenizer.get("model_max_length"), *sizes]
        known = [n for n in limits if isinstance(n, int | float) and 0 < n < _NO_LIMIT]
        rows = _count_rows(checkpoint)
        # Some classes have rows that they do not use.
        positions = None if rows is None else min([rows, *sizes]) - _count_lost_rows(config)
        return cls(trunk, int(min(known)) if known else None, positions)

    @property
    def longest(self) -> int | None:
        """The number of tokens after which a text is cut; None if nothing limits it."""
        return min((n for n in (self.stated, self.positions) if n is not None), default=None)

    @property
    def is_overstated(self) -> bool:
        """True if the folder states more tokens than the model has positions for."""
        return self.stated is not None and self.stated != self.longest

    def problems(self, *lengths: int | None) -> list[str]:
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
        for problem in self.problems(*lengths):
            raise CheckpointError(problem)


def _with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a transformer of text with its class's defaults for the keys that it lacks."""
    defaults = read_class_defaults(config.get("model_type"))
    # T5's old configs have a number that its class ignores.
    ignored = {"n_positions"} - {*defaults}
    return {**defaults, **{key: value for key, value in config.items() if key not in ignored}}


def _count_rows(checkpoint: Checkpoint) -> int | None:
    try:
        specs = checkpoint.specs.values()
    except CheckpointError:
        return None  # the reader of the weights says why
    return next((spec.shape[0] for spec in specs if _POSITION_TABLE.match(spec.name)), None)


def _count_lost_rows(config: Mapping[str, Any]) -> int:
    """Return the number of rows of a table of positions that come before a text's first token."""
    model_type = str(config.get("model_type"))
    if model_type not in _COUNT_FROM_PADDING:
        return 0
    pad = config.get("pad_token_id")
    # MPNet's class has a constant.
    return 1 + (pad if isinstance(pad, int) and model_type != "mpnet" else _FAIRSEQ_PADDING)

"""Settings under which a server may embed texts, and a model's own vectors under each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from emberge import Backbone, EmbergeError, TokenisedText

if TYPE_CHECKING:
    import numpy as np
    from emberge import Encoder
    from emberge.encoding import TextEmbedder
    from numpy.typing import NDArray

Pooling = Literal["mean", "cls", "last", "weighted_mean"]
POOLINGS: tuple[Pooling, ...] = ("cls", "mean", "last", "weighted_mean")
# A limit that no text reaches: with it, texts are tokenised whole.
_WHOLE = 1 << 24
# Words of a text that is longer than any model reads.
_LONGER = 40_000


class UntriedError(EmbergeError):
    """The error for a setting under which the model cannot embed."""


@dataclass(frozen=True)
class ServedSetting:
    """A way to embed texts: by default the model's own.

    `length` is a limit of tokens. With `cuts_left`, texts over the limit lose their beginning. `case` is
    `lower` for texts in lower case, and `kept` for a tokenizer that does not make them so. `model` is the
    number of a candidate, and `tokenizer` that of the candidate whose tokenizer is used; 0 is the model.
    """

    prompt: str
    pooling: Pooling | None = None
    length: int | None = None
    cuts_left: bool = False
    case: Literal["lower", "kept"] | None = None
    tokenizer: int = 0
    model: int = 0


class KnownVectors(Protocol):
    """Vectors of texts that a server's are compared with, under settings, and what settings there are."""

    def embed(self, texts: Sequence[str], setting: ServedSetting) -> NDArray[np.float32]:
        """Return the vectors [n, d] of texts under a setting.

        Raises:
            UntriedError: if there are none.
        """
        ...

    @property
    def limit(self) -> int | None:
        """Number of tokens that the model reads of a text; None if it has no limit."""
        ...

    @property
    def makes_lower_case(self) -> bool:
        """True if upper and lower case are the same to the model's tokenizer."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each whole text."""
        ...

    def list_poolings(self) -> Sequence[Pooling]:
        """Return the poolings that the model can have in addition to its own."""
        ...


@dataclass(frozen=True)
class KeptVectors:
    """Vectors of canaries that a passport has: by prompt, [n, d] in the order of `texts`."""

    texts: Sequence[str]
    rows_by_prompt: Mapping[str, NDArray[np.float32]]
    limit: int | None = None
    makes_lower_case: bool = False

    def embed(self, texts: Sequence[str], setting: ServedSetting) -> NDArray[np.float32]:
        rows = self.rows_by_prompt.get(setting.prompt)
        if rows is None or setting != ServedSetting(setting.prompt):
            raise UntriedError("a passport has no vectors under other settings")
        return rows[[self.texts.index(text) for text in texts]]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [0] * len(texts)

    def list_poolings(self) -> Sequence[Pooling]:
        return ()


@dataclass(eq=False)
class OwnVectors:
    """Vectors of texts by a model, and by candidates, under settings; equal tokens are embedded once.

    `folders` are those of the model and of the candidates. At most two models are in memory.
    """

    folders: Sequence[Path]
    backbone: Backbone
    device: str = "cpu"
    _embedders: dict[tuple[int, Pooling | None], TextEmbedder] = field(default_factory=dict)
    _vectors: dict[tuple[int, Pooling | None, tuple[int, ...], int], Any] = field(
        default_factory=dict
    )

    def embed(self, texts: Sequence[str], setting: ServedSetting) -> NDArray[np.float32]:
        """Return the vectors [n, d] of texts under a setting.

        Raises:
            UntriedError: if the model cannot embed under it.
        """
        import numpy as np

        tokens = self._tokenise(texts, setting)
        model = setting.model, setting.pooling
        keys = [(*model, tuple(text.ids), text.prompt_length) for text in tokens]
        new = {
            key: text for key, text in zip(keys, tokens, strict=True) if key not in self._vectors
        }
        if new:
            longest = max(len(text.ids) for text in new.values())
            if longest > self._count_positions(setting.model):
                raise UntriedError(f"{self.folders[setting.model]}: reads no {longest:,} tokens")
            rows = self._load(*model).embed_tokens([*new.values()])
            self._vectors |= dict(zip(new, rows, strict=True))
        return np.stack([self._vectors[key] for key in keys])

    @cached_property
    def limit(self) -> int | None:
        """Number of tokens that the model reads of a text; None if it has no limit."""
        (text,) = self._load(0, None).tokenise(["word " * _LONGER])
        limit = min(float(len(text.ids)), self._count_positions(0))
        return int(limit) if limit < _LONGER else None

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each whole text."""
        tokens = self._load(0, None).tokenise(texts, max_length=_WHOLE)
        return [len(text.ids) for text in tokens]

    @cached_property
    def makes_lower_case(self) -> bool:
        """True if upper and lower case are the same to the model's tokenizer."""
        upper, lower = self._load(0, None).tokenise(["The Cat", "the cat"])
        return list(upper.ids) == list(lower.ids)

    def list_poolings(self) -> list[Pooling]:
        """Return the poolings that the model can have in addition to its own."""
        return [pooling for pooling in POOLINGS if self._find_backbone(0, pooling) is not None]

    def _load(self, model: int, pooling: Pooling | None) -> TextEmbedder:
        from emberge.encoding import TextEmbedder

        if (model, pooling) not in self._embedders:
            backbone = self._find_backbone(model, pooling)
            if backbone is None:
                raise UntriedError(f"{self.folders[model]}: cannot have the pooling {pooling}")
            for other in [key for key in self._embedders if key != (0, None)]:
                del self._embedders[other]
            encoder: Encoder = backbone.load(
                self.folders[model], device=self.device, dtype="float32"
            )
            self._embedders[model, pooling] = TextEmbedder(encoder, model=str(self.folders[model]))
        return self._embedders[model, pooling]

    def _count_positions(self, model: int) -> float:
        """Return the number of places in a text that the model has, by its config."""
        from emberge.model_folder import Checkpoint

        config = Checkpoint(self.folders[model]).config
        places = config.get("max_position_embeddings")
        if type(places) is not int:
            return float("inf")
        return places - places % 8  # RoBERTa and its kin begin behind the padding's: 512 of 514

    def _find_backbone(self, model: int, pooling: Pooling | None) -> Backbone | None:
        names = {option.name for option in dataclasses.fields(self.backbone)}
        if pooling is not None and "pooling" not in names:
            return None
        changes: dict[str, Any] = {} if pooling is None else {"pooling": pooling}
        backbone = dataclasses.replace(self.backbone, **changes)
        return None if backbone.describe(self.folders[model]).problems else backbone

    def _tokenise(self, texts: Sequence[str], setting: ServedSetting) -> Sequence[TokenisedText]:
        texts = [text.lower() for text in texts] if setting.case == "lower" else texts
        if setting.case == "kept" or setting.tokenizer:
            return self._tokenise_otherwise(texts, setting)
        embedder, limit = self._load(setting.model, None), setting.length or self.limit
        if not setting.cuts_left:
            return embedder.tokenise(texts, prompt=setting.prompt, max_length=limit)
        whole = embedder.tokenise(texts, prompt=setting.prompt, max_length=_WHOLE)
        if limit is None:
            return whole
        own = embedder.text_tokens(whole)
        return [_cut_left(text, mask, limit) for text, mask in zip(whole, own, strict=True)]

    def _tokenise_otherwise(
        self, texts: Sequence[str], setting: ServedSetting
    ) -> Sequence[TokenisedText]:
        """Return tokens by another tokenizer, for the model's own table of embeddings."""
        folder = self.folders[setting.tokenizer]
        tokenizer = _read_tokenizer(folder, lower=setting.case != "kept")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        limit = setting.length or self.limit
        if limit is not None:
            tokenizer.enable_truncation(limit, direction="left" if setting.cuts_left else "right")
        rows = [
            encoding.ids
            for encoding in tokenizer.encode_batch([setting.prompt + text for text in texts])
        ]
        _require_rows(self._load(setting.model, None).encoder.module, rows, folder)
        return [TokenisedText(ids) for ids in rows]


def _cut_left(text: TokenisedText, own: NDArray[np.bool_], limit: int) -> TokenisedText:
    """Return a text of at most `limit` tokens without its first own tokens; special tokens stay."""
    import numpy as np

    surplus = len(text.ids) - limit
    if surplus <= 0:
        return text
    places = np.flatnonzero(own)[surplus:]
    kept = sorted({*places.tolist(), *np.flatnonzero(~own).tolist()})
    return TokenisedText([text.ids[place] for place in kept])


def _read_tokenizer(folder: Path, *, lower: bool) -> Any:
    """Return the fast tokenizer of a folder; without `lower`, one that does not make texts lower case.

    Raises:
        UntriedError: if it has no fast form, or makes nothing lower case.
    """
    from emberge.model_folder import Checkpoint, load_tokenizer
    from tokenizers import Tokenizer

    fast = getattr(load_tokenizer(Checkpoint(folder).tokenizer_folder), "backend_tokenizer", None)
    if fast is None:
        raise UntriedError(f"{folder}: its tokenizer has no fast form")
    content = json.loads(fast.to_str())
    if lower:
        return Tokenizer.from_str(json.dumps(content))
    normaliser = _keep_case(content.get("normalizer"))
    if normaliser == content.get("normalizer"):
        raise UntriedError(f"{folder}: its tokenizer makes nothing lower case")
    return Tokenizer.from_str(json.dumps({**content, "normalizer": normaliser}))


def _keep_case(normaliser: Any) -> Any:
    """Return the part `normalizer` of a tokenizer.json without what makes texts lower case."""
    if not isinstance(normaliser, dict):
        return normaliser
    if normaliser.get("type") == "Lowercase":
        return None
    changed = {**normaliser, **({"lowercase": False} if "lowercase" in normaliser else {})}
    if isinstance(normaliser.get("normalizers"), list):
        inside = [_keep_case(one) for one in normaliser["normalizers"]]
        changed["normalizers"] = [one for one in inside if one is not None]
    return changed


def _require_rows(module: Any, rows: Sequence[Sequence[int]], folder: Path) -> None:
    """Refuse token ids that the model's table of embeddings has no row for."""
    sizes = [one.num_embeddings for one in module.modules() if type(one).__name__ == "Embedding"]
    largest = max((max(ids, default=0) for ids in rows), default=0)
    if sizes and largest >= max(sizes):
        raise UntriedError(f"{folder}: has tokens that the model does not know")

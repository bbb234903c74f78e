"""Cross-encoders: models that read two texts together and give one score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import CheckpointError
from emberge.architectures import quiet_transformers
from emberge.model_folder import (
    Checkpoint,
    CrossEncoderFacts,
    TextLimit,
    require_vocabulary,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_PAIRS_AT_ONCE = 32


class CrossEncoderModel:
    """A cross-encoder of sentence-transformers on a device; pairs of like length run together.

    `max_length` is the largest number of tokens of both texts together, by default the model's own limit;
    excess tokens are cut from the longer text. `limit` is the limit in effect.

    Raises:
        CheckpointError: if the model has several outputs, or its head has no weights in the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str,
        max_length: int | None = None,
    ) -> None:
        import torch
        from sentence_transformers import CrossEncoder

        facts = CrossEncoderFacts.read(folder)
        for problem in facts.problems:
            raise CheckpointError(problem)
        with quiet_transformers():
            self._model = CrossEncoder(
                str(folder),
                device=device,
                max_length=max_length,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"dtype": torch.float32, "use_safetensors": True},
            )
        require_vocabulary(self._model.tokenizer, folder)
        self._plain = facts.classifies
        own = TextLimit.read(folder)
        own.require(max_length)
        self.limit: int | None = max_length or own.longest
        if self._plain:
            # Padding after a pair changes no score; other heads take the last token of a row.
            self._model.tokenizer.padding_side = "right"
            self._model.max_seq_length = self.limit
            self._require_head(folder)

    def _require_head(self, folder: Path) -> None:
        """Refuse a model whose files lack the head, since transformers fills the head with random numbers."""
        model = self._model.model
        trunk, stored_specs = f"{model.base_model_prefix}.", Checkpoint(folder).specs
        head = [name for name in model.state_dict() if not name.startswith(trunk)]
        if missing := [name for name in head if name not in stored_specs]:
            raise CheckpointError(
                f"{folder}: has no {missing[0]}, so its scores would be random; train the cross-encoder first"
            )

    def logits(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the model's outputs float32 [n] in the order of pairs, before any activation.

        Raises:
            CheckpointError: if an output is not finite.
        """
        import numpy as np
        from torch.nn import Identity

        if not pairs:
            return np.empty(0, np.float32)
        outputs = self._model.predict(
            list(pairs),
            batch_size=_PAIRS_AT_ONCE,
            activation_fn=Identity(),
            show_progress_bar=False,
        )
        scores = np.asarray(outputs, np.float32)
        if not np.isfinite(scores).all():
            raise CheckpointError("the cross-encoder's scores are not finite; is the model sound?")
        return scores

    def count_cut(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Return the number of pairs that are longer than the model's limit; 0 without a limit."""
        if not pairs or self.limit is None or not self._plain:
            return 0
        first, second = zip(*pairs, strict=True)
        ids = self._model.tokenizer([*first], [*second], truncation=False, verbose=False)
        return sum(len(tokens) > self.limit for tokens in ids["input_ids"])

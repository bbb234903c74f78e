"""A byte-level BPE tokenizer of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["SMALLEST", "byte_pair_tokenizer"]

SPECIAL = {
    **{"pad_token": "<|pad|>", "bos_token": "<|bos|>"},
    **{"eos_token": "<|eos|>", "mask_token": "<|mask|>"},
}
# All bytes and the special tokens.
SMALLEST = 256 + len(SPECIAL)


def byte_pair_tokenizer(texts: Iterator[str], size: int) -> Any:
    """Return a fast tokenizer of at most `size` tokens, the most frequent pairs of bytes in the texts.

    Words and spaces are cut as GPT-2 cuts them. No special token is added to a text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, **SPECIAL)

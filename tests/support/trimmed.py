"""Tiny models with tokenizers of three kinds, of thousands of tokens, and texts of Python's own library."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import tiny

_LIBRARY = Path(os.__file__).parent
KINDS = ("WordPiece", "Unigram", "BPE")
_ARCHITECTURES = {"WordPiece": "bert", "Unigram": "xlm-roberta", "BPE": "qwen3"}
_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "WordPiece": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    **{"Unigram": _IDS, "BPE": _IDS},
}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


@functools.cache
def library_texts(count: int, *, first: int = 0) -> Sequence[str]:
    """Distinct lines of the library's own modules: code, comments, lines of docstrings, one at a time."""
    return tuple(itertools.islice(_distinct_lines("*.py"), first, first + count))


def _distinct_lines(pattern: str) -> Iterator[str]:
    known: set[str] = set()
    for path in sorted(_LIBRARY.glob(pattern)):
        for line in path.read_text("utf-8", errors="ignore").splitlines():
            text = line.strip()
            if len(text) > 3 and text not in known:
                known.add(text)
                yield text


def write_texts(path: Path, texts: Sequence[str]) -> Path:
    """Write texts as the rows of a data set."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@functools.cache
def _trained(kind: str) -> str:
    """A tokenizer trained on packages of the library, and on words in other scripts."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    texts = [*itertools.islice(_distinct_lines("*/*.py"), 12_000), *library_texts(2_000)]
    texts += ["слово и дело", "今天的会议", "λόγος και έργο", "naïve café über"] * 20
    if kind == "BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=3_000,
            special_tokens=["<s>", "<pad>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=3_000, special_tokens=[*SPECIAL], unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def _write_tokenizer(folder: Path, kind: str) -> int:
    """Write a tokenizer of a kind as transformers does; return its size."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    if kind == "WordPiece":
        for name in (
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.txt",
        ):
            shutil.copy(tiny.minilm() / name, folder / name)
        return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    tokenizer = Tokenizer.from_str(_trained(kind))
    first, last = ("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if kind == "Unigram" else "$A </s>", special_tokens=[first, last]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    if kind == "Unigram":
        names |= {"unk_token": "<unk>", "mask_token": "<mask>"}  # an added token behind the pieces
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **names)
    fast.save_pretrained(folder)
    return len(fast)


def trimmable(
    folder: Path, kind: str, *, seed: int = 0, head: bool = False, **changes: Any
) -> Path:
    """Write a tiny random model with a tokenizer of a kind: BERT, XLM-R or Qwen3."""
    folder.mkdir(parents=True, exist_ok=True)
    size = _write_tokenizer(folder, kind)
    if kind == "BPE":
        size = -(-size // 64) * 64
    given = {"num_hidden_layers": 2, **_CHANGES[kind], **changes}
    config = tiny.config_of(_ARCHITECTURES[kind], size, **given)
    predicting = "AutoModelForCausalLM" if kind == "BPE" else "AutoModelForMaskedLM"
    tiny.save_random(folder, config, predicting if head else "AutoModel", seed=seed)
    if not head:
        pooling = "last" if kind == "BPE" else "mean"
        tiny.write_modules(folder, 32, pooling=pooling)
    return folder

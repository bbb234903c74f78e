"""Every id of a tokenizer has a row of the model's embedding."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import CheckpointError
from emberge_encoder import require_vocabulary

ROWS = 6
SPECIAL = {"[PAD]": 0, "[CLS]": 1}
WORDS = {"tree": 2, "house": ROWS - 1}


def tokenizer(vocabulary: dict[str, int], **special_ids: int) -> Any:
    """What the check asks of transformers' tokenizers."""
    names = ("bos_token", "cls_token", "sep_token", "eos_token", "pad_token", "unk_token")
    ids = {f"{name}_id": special_ids.get(name) for name in names}
    return SimpleNamespace(
        get_vocab=lambda: vocabulary,
        get_added_vocab=lambda: {"<image>": ROWS + 9},
        all_special_tokens=[*SPECIAL],
        **ids,
    )


@pytest.mark.parametrize(
    ("vocabulary", "special_ids", "said"),
    [
        ({**SPECIAL, **WORDS}, {"cls_token": 1}, None),
        ({**SPECIAL, **WORDS, "<image>": ROWS + 9}, {}, None),
        ({**SPECIAL, **WORDS}, {"eos_token": ROWS - 1}, None),
        ({**SPECIAL, **WORDS, "one": ROWS}, {}, "up to id 6, and the model has 6 rows"),
        ({**SPECIAL, **WORDS}, {"eos_token": ROWS}, "up to id 6, and the model has 6 rows"),
        ({**SPECIAL, **WORDS}, {"unk_token": ROWS + 2}, "up to id 8, and the model has 6 rows"),
        (SPECIAL, {}, "hold no words .* 2 special tokens"),
    ],
)
def test_every_id_that_a_text_may_have_is_below_the_number_of_rows(
    vocabulary: dict[str, int], special_ids: dict[str, int], said: str | None, tmp_path: Path
) -> None:
    for config in ({"vocab_size": ROWS}, {"text_config": {"vocab_size": ROWS}, "vocab_size": 1}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        if said is None:
            require_vocabulary(tokenizer(vocabulary, **special_ids), tmp_path)
        else:
            with pytest.raises(CheckpointError, match=f"{tmp_path}: .*{said}"):
                require_vocabulary(tokenizer(vocabulary, **special_ids), tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": null}')
    require_vocabulary(tokenizer({**WORDS, "one": 99}, eos_token=99), tmp_path)

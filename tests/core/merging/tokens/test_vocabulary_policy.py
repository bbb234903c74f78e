"""What becomes of each row of an embedding, by hand: two numbers a row, three or four tokens a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, Machine, PerTensor
from emberge.cli.main import main
from emberge.merging import (
    MergeInput,
    MergePlan,
    MergeRequest,
    Tokenizer,
    VocabularyPolicy,
    plan_merge,
)
from emberge.model_folder import Checkpoint
from emberge_merge import Linear, TaskArithmetic
from safetensors.torch import load_file, save_file

from tests.support.merges import merge_models

ROWS = "embed_tokens.weight"
Row = tuple[float, float]


def write(
    folder: Path,
    tokens: Sequence[str],
    rows: Sequence[Row],
    added: Mapping[str, int] | None = None,
    algorithm: str = "WordLevel",
    dtype: torch.dtype = torch.float32,
    **parts: Any,
) -> Path:
    """A model that is its embedding, with a tokenizer of whole words; `added` are special, by id."""
    folder.mkdir()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [{"id": i, "content": t, "special": True, **flags} for t, i in (added or {}).items()]
    vocab = {token: i for i, token in enumerate(tokens)}
    model: dict[str, Any] = {"type": algorithm, "vocab": vocab, "unk_token": tokens[0]}
    if algorithm == "BPE":
        model |= {"merges": []}
    whole = {"added_tokens": special, "model": model, **parts}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    (folder / "config.json").write_text(json.dumps({"model_type": "acme", "vocab_size": len(rows)}))
    save_file({ROWS: torch.tensor(rows, dtype=dtype)}, folder / "model.safetensors")
    return folder


def merged(
    out: Path,
    *folders: Path,
    weights: Sequence[float] = (),
    how: Mapping[str, Any] | None = None,
    **vocabulary: Any,
) -> list[list[float]]:
    """The rows of a merge; `how` are settings of the request or the run, linear unless they say more."""
    given = zip(folders, weights or [1.0] * len(folders), strict=True)
    merge_models(
        [MergeInput(f.name, f, PerTensor(w)) for f, w in given],
        out=out,
        vocabulary_policy=VocabularyPolicy(**vocabulary),
        **{"strategy": [Linear()], **(how or {})},
    )
    found: list[list[float]] = load_file(out / "model.safetensors")[ROWS].tolist()
    return found


def planned(*folders: Path, **vocabulary: Any) -> MergePlan:
    models = tuple(MergeInput(f.name, f) for f in folders)
    policy = VocabularyPolicy(**vocabulary)
    return plan_merge(MergeRequest(inputs=models, strategy=(Linear(),), vocabulary_policy=policy))


def problems(*folders: Path, **vocabulary: Any) -> str:
    found = [str(problem) for problem in planned(*folders, **vocabulary).problems]
    assert all("\n" not in problem for problem in found)
    return "\n".join(found)


def height(*folders: Path, **vocabulary: Any) -> int:
    """Rows of the embedding that comes out."""
    tensors = planned(*folders, **vocabulary).tensors
    return next(tensor.result.shape[0] for tensor in tensors if tensor.name == ROWS)


def ids(folder: Path) -> dict[str, int]:
    found = Tokenizer.read(Checkpoint(folder))
    assert found is not None
    return dict(found.tokens)


def test_rows_of_equal_tokens_are_merged_and_of_one_models_token_copied(tmp_path: Path) -> None:
    a = write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4)])
    vision = write(tmp_path / "v", ["u", "cat"], [(2, 0), (0, 8), (5, 7)], {"<image>": 2})
    assert merged(tmp_path / "out", a, vision, weights=(3, 1)) == [[0.5, 1.5], [3, 5], [5, 7]]
    assert ids(tmp_path / "out") == {"u": 0, "cat": 1, "<image>": 2}
    # Of several models that know a token, those alone are averaged, by their own weights.
    speech = write(tmp_path / "s", ["u", "cat"], [(1, 1), (1, 1), (9, 3)], {"<image>": 2})
    both = merged(tmp_path / "both", a, vision, speech, weights=(2, 1, 3))
    assert both[2] == [8, 4]
    assert both[0] == pytest.approx([5 / 6, 7 / 6])


def test_rows_of_padding_do_not_count_in_the_mean_of_a_token(tmp_path: Path) -> None:
    """Both have three rows, and the third is a token in one alone."""
    a = write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4), (100, 100)])
    mask = write(tmp_path / "m", ["u", "cat"], [(2, 0), (0, 8), (5, 7)], {"[MASK]": 2})
    for number, order in enumerate(([a, mask], [mask, a])):
        found = merged(tmp_path / f"out{number}", *order)
        assert found == [[1, 1], [2, 6], [5, 7]]
        assert ids(tmp_path / f"out{number}")["[MASK]"] == 2


def test_rows_without_a_token_are_merged_by_position(tmp_path: Path) -> None:
    """Room that every model keeps is merged as it stands, and stays the template's where it alone has it."""
    a = write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4), (1, 3), (7, 9)])
    b = write(tmp_path / "b", ["u", "cat"], [(2, 0), (0, 8), (3, 1), (9, 7)])
    assert merged(tmp_path / "out", a, b)[2:] == [[2, 2], [8, 8]]
    c = write(tmp_path / "c", ["u", "cat"], [(2, 0), (0, 8), (3, 1)])
    assert merged(tmp_path / "long", a, c)[2:] == [[2, 2], [7, 9]]
    assert merged(tmp_path / "short", c, a)[2:] == [[2, 2]]


@pytest.mark.parametrize("policy", ["token_aware", "union"])
def test_padding_is_cut_off_and_put_on_again(policy: str, tmp_path: Path) -> None:
    """Equal tokens, and embeddings of 2, 64 and 128 rows: the tokens' rows are merged in any order."""
    room = [(100.0, 100.0)]
    rows: dict[int, list[Row]] = {
        2: [(0, 3), (6, 3)],
        64: [(3, 0), (0, 9), *room * 62],
        128: [(3, 3), (3, 0), *room * 126],
    }
    models = {n: write(tmp_path / f"m{n}", ["u", "cat"], r) for n, r in rows.items()}
    for first in models:
        order = [first, *(n for n in models if n != first)]
        out = tmp_path / f"from-{first}"
        found = merged(out, *(models[n] for n in order), policy=policy)
        assert found[:2] == [[2, 2], [3, 4]]
        assert len(found) == first, "as the template is"
        assert json.loads((out / "config.json").read_text())["vocab_size"] == first


def test_new_tokens_keep_their_ids(tmp_path: Path) -> None:
    """What two models add is put where each has it, with room between."""
    rows: list[Row] = [(0, 2), (4, 4), (1, 1), (2, 2), (3, 3)]
    a = write(tmp_path / "a", ["u", "cat"], rows)
    b = write(tmp_path / "b", ["u", "cat"], [(2, 0), (0, 8), (5, 7)], {"<b>": 2})
    c = write(tmp_path / "c", ["u", "cat"], [(2, 0), (0, 8), (0, 0), (6, 8)], {"<b>": 2, "<c>": 3})
    found = merged(tmp_path / "out", a, b, c, weights=(1, 3, 1))
    assert found[2] == [3.75, 5.25]  # (3 × (5, 7) + (0, 0)) / 4
    assert found[3] == [6, 8]
    assert found[4] == [3, 3]
    assert ids(tmp_path / "out") == {"u": 0, "cat": 1, "<b>": 2, "<c>": 3}


def test_a_union_matches_rows_by_text_and_appends_new_tokens(tmp_path: Path) -> None:
    a = write(tmp_path / "a", ["u", "cat", "dog"], [(0, 2), (4, 4), (8, 0)])
    b = write(tmp_path / "b", ["u", "owl", "dog", "cat"], [(2, 0), (5, 7), (0, 8), (6, 6)])
    found = merged(tmp_path / "out", a, b, policy="union", pad_to=1)
    assert found == [[1, 1], [5, 5], [4, 4], [5, 7]]
    three = merged(tmp_path / "1to3", a, b, weights=(1, 3), policy="union", pad_to=1)
    assert three == [[1.5, 0.5], [5.5, 5.5], [2, 6], [5, 7]]
    small = {"machine": Machine(workers=3, memory=300)}
    many = merged(tmp_path / "many", a, b, policy="union", pad_to=1, how=small)
    assert many == found
    assert ids(tmp_path / "out") == {"u": 0, "cat": 1, "dog": 2, "owl": 3}
    padded = merged(tmp_path / "padded", a, b, policy="union")
    assert len(padded) == 64
    assert padded[:4] == found
    assert padded[4:] == [[0, 0]] * 60


def test_a_union_needs_one_algorithm_and_one_way_to_cut(tmp_path: Path) -> None:
    a = write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4)])
    b = write(tmp_path / "b", ["u", "dog"], [(0, 2), (4, 4)], algorithm="BPE")
    with pytest.raises(CheckpointError, match="needs one algorithm, and 'a' has WordLevel and 'b'"):
        merged(tmp_path / "out", a, b, policy="union")
    cased = write(tmp_path / "c", ["u", "dog"], [(0, 2), (4, 4)], normalizer={"type": "NFC"})
    said = problems(a, cased, policy="union")
    assert "'c' cuts text otherwise than 'a' (normalizer or pre_tokenizer)" in said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_base_takes_no_part_in_the_rows_of_tokens_that_it_lacks(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """By task arithmetic: what one model alone knows is copied, what two know is their mean."""
    base = write(
        tmp_path / "base", ["u", "cat"], [(1, 1), (2, 2), (90, 90)], {"<x>": 2}, dtype=dtype
    )
    a = write(tmp_path / "a", ["u", "cat"], [(2, 1), (4, 4), (8, 2)], {"<t>": 2}, dtype=dtype)
    rows: list[Row] = [(1, 3), (2, 5), (4, 4), (7, 3)]
    b = write(tmp_path / "b", ["u", "cat"], rows, {"<t>": 2, "<b>": 3}, dtype=dtype)
    how = {"strategy": [TaskArithmetic()], "base": MergeInput("base", base)}
    found = merged(tmp_path / "out", a, b, how=how)
    assert found == [[2, 3], [4, 7], [6, 3], [7, 3]]
    stored = load_file(tmp_path / "out" / "model.safetensors")[ROWS]
    assert stored.dtype == dtype


def test_a_padded_vocabulary_grows_by_64_and_any_other_by_what_is_new(tmp_path: Path) -> None:
    words = ["u", "cat"]
    many = {f"<{i}>": i for i in range(2, 72)}
    a = write(tmp_path / "a", words, [(0.0, 0.0)] * 2)
    padded = write(tmp_path / "p", words, [(0.0, 0.0)] * 64)
    b = write(tmp_path / "b", words, [(0.0, 0.0)] * 72, many)
    assert (height(a, b), height(padded, b)) == (72, 128)


@pytest.fixture
def clashing(tmp_path: Path) -> list[Path]:
    """A template with a free row, and two models that each put another token there."""
    rows: list[Row] = [(0, 2), (4, 4), (1, 1)]
    return [
        write(tmp_path / "a", ["u", "cat"], rows),
        write(tmp_path / "b", ["u", "cat"], [*rows[:2], (5, 7)], {"<b>": 2}),
        write(tmp_path / "c", ["u", "cat"], [*rows[:2], (6, 8)], {"<c>": 2}),
    ]


def test_tokens_and_ids_that_clash_are_refused(clashing: list[Path], tmp_path: Path) -> None:
    said = problems(*clashing)
    assert (
        "'b' and 'c' have different tokenizers: id 2 is \"<b>\" in one and \"<c>\" in the" in said
    )
    assert "vocabulary: union" in said
    swapped = write(tmp_path / "d", ["cat", "u"], [(0, 2), (4, 4)])
    said = problems(clashing[0], swapped)
    assert "'a' and 'd' have different tokenizers: id 0 is \"u\" in one and \"cat\" in the" in said
    assert " and 1 more; " in said
    moved = write(tmp_path / "e", ["u"], [(0, 0)] * 3, {"cat": 2})
    assert '"cat" is id 1 in one and 2 in the other' in problems(clashing[0], moved)
    twin = write(tmp_path / "f", ["u", "cat"], [(0, 0)] * 4, {"<b>": 3})
    assert '"<b>" is id 2 in one and 3 in the other' in problems(clashing[0], clashing[1], twin)


def test_a_chosen_tokenizer_decides_between_two_tokens_of_one_id(
    clashing: list[Path], tmp_path: Path
) -> None:
    a, b, c = clashing
    assert merged(tmp_path / "chosen", a, b, c, how={"tokenizer": b})[2] == [5, 7]
    assert ids(tmp_path / "chosen") == {"u": 0, "cat": 1, "<b>": 2}


def test_a_vocab_txt_gets_the_new_tokens(tmp_path: Path) -> None:
    words = ["u", "\u2028", "dog"]  # a separator of lines can be a token
    a = write(tmp_path / "a", words[:2], [(0, 2), (4, 4)])
    b = write(tmp_path / "b", words, [(2, 0), (0, 8), (5, 7)])
    for folder, tokens in ((a, words[:2]), (b, words)):
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    assert planned(a, b).warnings[-1:] == (
        "the tokenizers differ: 1 row of the vocabulary is only from the models that have the token",
    )
    assert merged(tmp_path / "out", a, b) == [[1, 1], [2, 6], [5, 7]]
    assert (tmp_path / "out" / "vocab.txt").read_text() == (b / "vocab.txt").read_text()


@pytest.mark.parametrize("policy", ["token_aware", "union"])
def test_equal_tokenizers_need_no_plan(policy: str, tmp_path: Path) -> None:
    a, b = (write(tmp_path / name, ["u", "cat"], [(0, 2), (4, 4)]) for name in "ab")
    found = planned(a, b, policy=policy)
    assert not found.problems
    assert found.token_plan is None or found.token_plan.summary == ""
    assert height(a, b) == 2


RECIPE = "steps: {merged: {merge: {models: [./a, ./b], strategy: linear, vocabulary: HOW}}}"


def test_check_counts_the_rows_and_refuses_a_clash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4), (5, 5)], {"<a>": 2})
    write(tmp_path / "b", ["u", "cat"], [(2, 0), (0, 8), (5, 7)], {"<b>": 2, "cat": 1})
    for how, code in (("union", 0), ("token_aware", 2)):
        Path("r.yaml").write_text(RECIPE.replace("HOW", how))
        assert main(["check", "r.yaml", "--long"]) == code
        said = capsys.readouterr()
        if how == "union":
            assert "64 rows: 2 merged, 2 from the models that know them, 60 of no token" in said.out
    assert 'id 2 is "<a>" in one and "<b>" in the other' in " ".join(said.err.split())
    assert "vocabulary: union" in said.err

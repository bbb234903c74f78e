"""What becomes of each row of an embedding, by hand: two numbers a row, three or four tokens a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, PerTensor
from emberge.cli.main import main
from emberge.merging import MergeInput, Tokenizer, VocabularyPolicy
from emberge.model_folder import Checkpoint
from emberge_merge import Linear
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
) -> Path:
    """A model that is its embedding, with a tokenizer of whole words; `added` are special, by id."""
    folder.mkdir()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [{"id": i, "content": t, "special": True, **flags} for t, i in (added or {}).items()]
    vocab = {token: i for i, token in enumerate(tokens)}
    model: dict[str, Any] = {"type": algorithm, "vocab": vocab, "unk_token": tokens[0]}
    if algorithm == "BPE":
        model |= {"merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": special, "model": model}))
    (folder / "config.json").write_text(json.dumps({"model_type": "acme", "vocab_size": len(rows)}))
    save_file({ROWS: torch.tensor(rows, dtype=torch.float32)}, folder / "model.safetensors")
    return folder


def merged(
    out: Path, *folders: Path, weights: Sequence[float] = (), **vocabulary: Any
) -> list[list[float]]:
    given = zip(folders, weights or [1.0] * len(folders), strict=True)
    merge_models(
        [MergeInput(f.name, f, PerTensor(w)) for f, w in given],
        strategy=[Linear()],
        out=out,
        tokens=VocabularyPolicy(**vocabulary),
    )
    found: list[list[float]] = load_file(out / "model.safetensors")[ROWS].tolist()
    return found


def ids(folder: Path) -> dict[str, int]:
    found = Tokenizer.read(Checkpoint(folder))
    assert found is not None
    return dict(found.tokens)


def test_mean_averages_all_rows_like_any_tensor(tmp_path: Path) -> None:
    a = write(tmp_path / "a", ["u", "cat", "dog"], [(0, 2), (4, 4), (8, 0)])
    b = write(tmp_path / "b", ["u", "dog", "cat"], [(2, 0), (0, 8), (4, 4)])
    assert merged(tmp_path / "out", a, b, policy="mean") == [[1, 1], [2, 6], [6, 2]]
    assert merged(tmp_path / "3to1", a, b, weights=(3, 1), policy="mean")[1] == [3, 5]


def test_equal_tokens_are_merged_and_one_models_meaning_is_copied(tmp_path: Path) -> None:
    a = write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4)])
    vision = write(tmp_path / "v", ["u", "cat"], [(2, 0), (0, 8), (5, 7)], {"<image>": 2})
    assert merged(tmp_path / "out", a, vision, weights=(3, 1)) == [[0.5, 1.5], [3, 5], [5, 7]]
    assert ids(tmp_path / "out") == {"u": 0, "cat": 1, "<image>": 2}
    # Of several models that know a token, those alone are averaged, by their own weights.
    speech = write(tmp_path / "s", ["u", "cat"], [(1, 1), (1, 1), (9, 3)], {"<image>": 2})
    both = merged(tmp_path / "both", a, vision, speech, weights=(2, 1, 3))
    assert both[2] == [8, 4]
    assert both[0] == pytest.approx([5 / 6, 7 / 6])


def test_a_row_of_padding_beside_a_meaning_counts_for_nothing(tmp_path: Path) -> None:
    """Both have three rows, and the third is a token in one alone."""
    a = write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4), (100, 100)])
    mask = write(tmp_path / "m", ["u", "cat"], [(2, 0), (0, 8), (5, 7)], {"[MASK]": 2})
    for number, order in enumerate(([a, mask], [mask, a])):
        found = merged(tmp_path / f"out{number}", *order)
        assert found == [[1, 1], [2, 6], [5, 7]]
        assert ids(tmp_path / f"out{number}")["[MASK]"] == 2


def test_rows_of_no_token_are_whatever_they_are(tmp_path: Path) -> None:
    """Room that every model keeps is merged as it stands, and stays the template's where it alone has it."""
    a = write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4), (1, 3), (7, 9)])
    b = write(tmp_path / "b", ["u", "cat"], [(2, 0), (0, 8), (3, 1), (9, 7)])
    assert merged(tmp_path / "out", a, b)[2:] == [[2, 2], [8, 8]]


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


def test_new_tokens_stand_on_their_own_ids(tmp_path: Path) -> None:
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


def test_a_union_goes_by_the_text_and_appends_what_is_new(tmp_path: Path) -> None:
    a = write(tmp_path / "a", ["u", "cat", "dog"], [(0, 2), (4, 4), (8, 0)])
    b = write(tmp_path / "b", ["u", "owl", "dog", "cat"], [(2, 0), (5, 7), (0, 8), (6, 6)])
    found = merged(tmp_path / "out", a, b, policy="union", pad_to=1)
    assert found == [[1, 1], [5, 5], [4, 4], [5, 7]]
    assert ids(tmp_path / "out") == {"u": 0, "cat": 1, "dog": 2, "owl": 3}
    padded = merged(tmp_path / "padded", a, b, policy="union")
    assert len(padded) == 64
    assert padded[:4] == found
    assert padded[4:] == [[0, 0]] * 60


def test_xlm_rs_vocabulary_is_padded_to_a_multiple_of_64(tmp_path: Path) -> None:
    """250,002 tokens become 250,048 rows (the worked number of methods C.1, T-C1)."""
    tokens = [f"t{i}" for i in range(250_002)]
    a = write(tmp_path / "a", tokens[:-1], [(1.0, 2.0)] * 250_001)
    b = write(tmp_path / "b", tokens, [(1.0, 2.0)] * 250_002)
    assert len(merged(tmp_path / "out", a, b, policy="union")) == 250_048


def test_a_union_of_two_algorithms_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4)])
    b = write(tmp_path / "b", ["u", "dog"], [(0, 2), (4, 4)], algorithm="BPE")
    with pytest.raises(CheckpointError, match="needs one algorithm, and 'a' has WordLevel and 'b'"):
        merged(tmp_path / "out", a, b, policy="union")


def test_a_kept_token_that_has_no_row_is_left_alone(tmp_path: Path) -> None:
    """Its id lies behind the embeddings of all models."""
    rows: list[Row] = [(0, 2), (4, 4)]
    a, b = write(tmp_path / "a", ["u", "cat"], rows), write(tmp_path / "b", ["u", "cat"], rows)
    far = write(tmp_path / "far", ["u", "cat"], rows, {"<far>": 2})
    found = merged(tmp_path / "out", a, b, far, keep={"<far>": "far"})
    assert found == [[0, 2], [4, 4]]


RECIPE = "steps: {merged: {merge: {models: [./a, ./b], strategy: linear, vocabulary: HOW}}}"


def test_check_shows_what_differs_and_refuses_a_clash_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", ["u", "cat"], [(0, 2), (4, 4), (5, 5)], {"<a>": 2})
    write(tmp_path / "b", ["u", "cat"], [(2, 0), (0, 8), (5, 7)], {"<b>": 2, "cat": 1})
    for how, code in (("union", 0), ("token_aware", 2)):
        Path("r.yaml").write_text(RECIPE.replace("HOW", how))
        assert main(["check", "r.yaml", "--long"]) == code
        said = capsys.readouterr()
        words = " ".join((said.out + said.err).split())
        assert "'a' and './b': 1 id is another token: 2 \"<a>\" / \"<b>\"" in words
        assert 'special in one and plain in the other: "cat"' in words
    assert 'id 2 is "<a>" in one and "<b>" in the other' in " ".join(said.err.split())
    assert "vocabulary: union" in said.err
    assert main(["run", "r.yaml", "--out", "out"]) == 2
    said = capsys.readouterr()
    assert 'id 2 is "<a>" in one and "<b>" in the other' in " ".join(said.err.split())
    assert "Traceback" not in said.err
    assert not list(Path("out").glob("*/*.safetensors"))

"""Front matter of untrusted cards: a licence is what is stated as one."""

from __future__ import annotations

import itertools
from pathlib import Path

import yaml
from emberge_report import read_front_matter, read_licence


def licence_of(folder: Path) -> str | None:
    return read_licence(read_front_matter(folder))


def state_licence(folder: Path, licence: str, **more: str) -> None:
    front = yaml.safe_dump({"license": licence, **more, "language": "en"})
    (folder / "README.md").write_text(f"---\n{front}---\n\n# A model\n")


def test_a_card_in_whatever_state_states_nothing(tmp_path: Path) -> None:
    assert licence_of(tmp_path) is None
    for text in (
        "no front matter",
        "---\nlicense: mit\nbut no end",
        "---\n[: \n---\n",
        "---\n- a\n---",
    ):
        (tmp_path / "README.md").write_text(text)
        assert licence_of(tmp_path) is None, text
    state_licence(tmp_path, "other", license_name="gemma")
    assert licence_of(tmp_path) == "gemma"
    (tmp_path / "README.md").write_text("---\nlicense:\n- mit\n- apache-2.0\n---\n")
    assert licence_of(tmp_path) == "mit, apache-2.0"
    for nothing in ("", "~", "null", "[[mit]]"):
        (tmp_path / "README.md").write_text(f"---\nlicense: {nothing}\n---\n")
        assert licence_of(tmp_path) is None, nothing
    nested = [
        "a: &a [mit]",
        *(f"{k}: &{k} [*{j}, *{j}]" for j, k in itertools.pairwise("abcdefgh")),
    ]
    (tmp_path / "README.md").write_text("\n".join(["---", *nested, "license: *h", "---"]))
    assert licence_of(tmp_path) is None, "lists in lists are no licence, and none is written out"

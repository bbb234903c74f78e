"""The files and the card of a publication, without a hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.model_folder import HUB_ID
from emberge_publish.prepare import choose_files, complete_card
from emberge_publish.publication import PublishOptions
from emberge_report import MODEL_NAME_COMMENT


def test_only_files_of_the_record_are_published_and_links_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "result"
    for name in ("config.json", "1_Pooling/config.json", "README.md", "artifact.json", "x.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    (folder / "logs").mkdir()
    (folder / "logs" / "1.txt").write_text("")
    record = {"files": {"config.json": {}, "1_Pooling/config.json": {}, "logs/1.txt": {}}}
    chosen, left = choose_files(folder, record)
    assert chosen == {
        name: folder / name
        for name in ("config.json", "1_Pooling/config.json", "README.md", "artifact.json")
    }
    assert left == ["x.txt"]
    (folder / "extra").symlink_to(tmp_path)
    assert choose_files(folder, record)[1] == ["x.txt"]
    for name in ("README.md", "more2"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path)
        named = {"files": {**record["files"], "more2/a": {}}}
        with pytest.raises(CheckpointError, match=rf"{name}(/a)?: is a link"):
            choose_files(folder, named)
        (folder / name).unlink()


@pytest.mark.parametrize(
    "call",
    [
        "SentenceTransformer({})",
        "SentenceTransformer({}, trust_remote_code=True)",
        "PeftModel.from_pretrained(base, {})",
    ],
)
def test_the_published_card_loads_the_model_by_its_name_on_the_hub(call: str) -> None:
    head, line = "---\ntags: [a]\n---\n\n", f"model = {call}"
    before, after = line.format('"soup"'), line.format('"me/other"')
    found = complete_card(
        f"{head}# soup\n\n{before}{MODEL_NAME_COMMENT}\nprint('soup')\n",
        "soup",
        PublishOptions(name="me/other"),
    )
    assert found == f"{head}# other\n\n{after}\nprint('soup')\n"


@pytest.mark.parametrize("name", ["soup", "a/b/c", "../soup"])
def test_a_name_is_owner_and_name(name: str) -> None:
    assert HUB_ID.fullmatch(name) is None

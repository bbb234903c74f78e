"""The files and the card of a publication, and what its step checks, without a hub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import CheckpointError, ModelRef
from emberge_publish.prepare import choose_files, complete_card
from emberge_publish.publication import PublishOptions
from emberge_publish.publish_step import Publish
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


@pytest.mark.parametrize("token", ["", "hf_x"])
def test_the_step_warns_before_the_run_if_nobody_is_logged_in(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    context: Any = SimpleNamespace(
        problem=lambda text, option: ("problem", option, text),
        warning=lambda text: ("warning", "", text),
    )

    def checked(name: str, model: str) -> list[Any]:
        step = Publish(model=ModelRef(model, Path()), name=name)
        return [(kind, option) for kind, option, _ in step.check(context)]

    nobody = [] if token else [("warning", "")]
    assert checked("me/soup", "./soup") == nobody
    wrong = [("problem", "name"), ("problem", "model")]
    assert checked("soup", "./soup+./adapter") == [*wrong, *nobody]

"""Training data say which tasks they make in domain."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from emberge import DataEntry, DataError, DataRef
from emberge_mteb import list_in_domain_tasks

TEXT = """
train:
- {name: faq, file: faq.jsonl, ind_tasks: [FAQ, FAQ.v2]}
- {name: topics, hub: owner/topics, ind_tasks: [Topics, FAQ]}
- {name: quiet, file: faq.jsonl}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "datasets.yaml").write_text(TEXT)
    return tmp_path


def resolve(reference: DataRef) -> Path | None:
    return None if reference.step else Path(reference.text)


def tasks(folder: Path, *only: str, **options: object) -> tuple[str, ...]:
    entry = DataEntry(path=DataRef(str(folder)), only=only, **options)  # type: ignore[arg-type]
    return list_in_domain_tasks([entry], resolve)


def test_training_data_names_its_in_domain_tasks_or_is_refused(folder: Path) -> None:
    assert tasks(folder) == ("FAQ", "FAQ.v2", "Topics")
    assert tasks(folder, "topics") == ("Topics", "FAQ")
    assert tasks(folder, "quiet", ind_tasks=("Own",)) == ("Own",)
    hub = DataEntry(hub="owner/name", ind_tasks=("Hub",))
    assert list_in_domain_tasks([hub], resolve) == ("Hub",)
    assert list_in_domain_tasks([dataclasses.replace(hub, ind_tasks=())], resolve) == ()
    with pytest.raises(DataError, match="no training set says which tasks it makes in domain"):
        tasks(folder, "quiet")
    with pytest.raises(DataError, match="there is no training set 'topic'; did you mean 'topics'"):
        tasks(folder, "topic")
    to_come, quiet = DataEntry(path=DataRef("$corpus")), DataEntry(path=DataRef("quiet.jsonl"))
    for entries in ([to_come], [to_come, quiet], [quiet, to_come]):
        assert list_in_domain_tasks(entries, resolve) == ()
    with pytest.raises(DataError, match=r"^quiet\.jsonl, o/n: no training set"):
        list_in_domain_tasks([quiet, DataEntry(hub="o/n")], resolve)
    assert list_in_domain_tasks([], resolve) == ()

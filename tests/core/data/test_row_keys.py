"""Keys of rows: bags that other rows cannot change, forgotten keys, and lists of keys."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from emberge import DataEntry, DataError, DataRef, RecipeError, parse_recipe
from emberge.data import (
    KeyList,
    StoredDataset,
    check_entries,
    count_datasets,
    load_catalogue,
    load_datasets,
    write_catalogue,
)
from emberge.data.entry import Bag, Columns, Forget
from emberge.data.row_keys import bag_of, hash_key
from emberge_data import JsonLines

READERS = (JsonLines(),)


def resolve(reference: DataRef) -> Path:
    return reference.folder / reference.text


def rows(count: int = 120, customers: int = 12) -> list[dict[str, Any]]:
    return [
        {"query": f"question {i}", "pos": [f"answer {i}"], "customer": f"c{i % customers}"}
        for i in range(count)
    ]


def write(path: Path, given: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in given), encoding="utf-8")
    return path


def load(path: Path, store: Path | None = None, **options: Any) -> list[StoredDataset]:
    entry = DataEntry(path=DataRef(str(path)), **{"name": "set", "key": "customer", **options})
    return load_datasets([entry], readers=READERS, resolve=resolve, store=store)


def one(path: Path, **options: Any) -> StoredDataset:
    (dataset,) = load(path, **options)
    return dataset


def anchors(dataset: StoredDataset) -> list[str]:
    return [dataset[i].anchor for i in range(len(dataset))]


# ── bags ────────────────────────────────────────────────────────────────────────────────────────


def test_bags_are_disjoint_and_have_all_rows_together(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows())
    bags = [anchors(one(path, bag=Bag(parts=4, part=part))) for part in (1, 2, 3, 4)]
    assert all(bags)
    assert Counter(a for bag in bags for a in bag) == Counter(anchors(one(path)))


def test_a_customers_rows_are_in_one_bag_of_every_set(tmp_path: Path) -> None:
    part = bag_of(hash_key("c3"), 4)
    for name, count in (("a.jsonl", 120), ("b.jsonl", 37)):
        dataset = one(write(tmp_path / name, rows(count)), bag=Bag(parts=4, part=part))
        mine = [i for i in range(count) if i % 12 == 3]
        assert {f"question {i}" for i in mine} <= set(anchors(dataset))


def test_hashes_of_keys_and_their_bags_never_change() -> None:
    # Known values: another hash would move every row of every user.
    assert hash_key("customer-3").hex() == "706df33bbdafacad2d9e8173f523d8ee"
    assert [bag_of(bytes([0] * 7 + [n] + [9] * 8), 4) for n in range(5)] == [1, 2, 3, 4, 1]


def test_removed_rows_move_no_row_of_another_bag(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.jsonl", rows())
    gone = bag_of(hash_key("c3"), 4)
    less = write(tmp_path / "less.jsonl", [r for r in rows() if r["customer"] != "c3"])
    for part in (1, 2, 3, 4):
        before, after = (one(path, bag=Bag(parts=4, part=part)) for path in (whole, less))
        assert (before.fingerprint == after.fingerprint) == (part != gone)
        assert (anchors(before) == anchors(after)) == (part != gone)


def test_the_order_in_a_bag_depends_on_content_alone(tmp_path: Path) -> None:
    shuffled = rows()
    random.Random(0).shuffle(shuffled)
    first = one(write(tmp_path / "a.jsonl", rows()), bag=Bag(parts=2, part=1))
    second = one(write(tmp_path / "b.jsonl", shuffled), bag=Bag(parts=2, part=1))
    assert anchors(first) == anchors(second) != sorted(anchors(first))
    assert first.fingerprint == second.fingerprint
    assert list(first.key_hashes()) == list(second.key_hashes())
    assert next(iter(first.key_hashes())) == hash_key(first[0].key or "")


def test_without_a_key_a_rows_content_is_its_key_and_its_negatives_are_not(tmp_path: Path) -> None:
    plain = [{"query": r["query"], "pos": r["pos"]} for r in rows()]
    mined = [{**row, "neg": [f"other {i}"]} for i, row in enumerate(plain)]
    bags = [
        anchors(one(write(tmp_path / name, given), key=None, bag=Bag(parts=3, part=2)))
        for name, given in (("plain.jsonl", plain), ("mined.jsonl", mined))
    ]
    assert set(bags[0]) == set(bags[1])
    assert 0 < len(bags[0]) < 120


def test_texts_of_a_label_are_drawn_inside_the_bag(tmp_path: Path) -> None:
    given = [{"text": f"text {i}", "label": i % 3, "customer": f"c{i % 8}"} for i in range(96)]
    dataset = one(write(tmp_path / "a.jsonl", given), bag=Bag(parts=2, part=1))
    inside = set(anchors(dataset))
    for i in range(len(dataset)):
        assert {*dataset[i].positives, *dataset[i].negatives} <= inside
        assert dataset[i].key


def test_a_sample_is_taken_from_the_bag(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows())
    bag = Bag(parts=2, part=2)
    assert len(one(path, bag=bag, limit=5)) == 5
    assert set(anchors(one(path, bag=bag, limit=5))) <= set(anchors(one(path, bag=bag)))


def test_a_bag_of_the_first_rows_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows())
    with pytest.raises(DataError, match="give limit in place of first"):
        one(path, bag=Bag(parts=2, part=1), first=50)


def test_a_set_without_rows_in_the_bag_is_left_out(tmp_path: Path) -> None:
    part = bag_of(hash_key("c1"), 2)
    write(tmp_path / "few.jsonl", [r for r in rows() if r["customer"] == "c1"])
    write(tmp_path / "many.jsonl", rows())
    (tmp_path / "datasets.yaml").write_text(
        "train:\n- {name: few, file: few.jsonl, task: retrieval, key: customer}\n"
        "- {name: many, file: many.jsonl, task: retrieval, key: customer}\n"
    )
    path = tmp_path / "datasets.yaml"
    entry = {"name": None, "key": None, "bag": Bag(parts=2, part=3 - part)}
    assert [d.info.name for d in load(path, **entry)] == ["many"]
    with pytest.raises(DataError, match=rf"few.jsonl: no row is in part {3 - part} of 2"):
        load(path, **entry, only=("few",))


def test_a_bag_is_counted_as_it_is_loaded(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows())
    entry = DataEntry(
        path=DataRef(str(path)),
        key="customer",
        bag=Bag(parts=3, part=1),
        forget=(Forget(keys=("c5",)),),
    )
    (info,) = count_datasets([entry], readers=READERS, resolve=resolve)
    (dataset,) = load_datasets([entry], readers=READERS, resolve=resolve)
    assert info == dataset.info


def test_the_first_rows_of_a_bag_are_found_behind_those_of_others(tmp_path: Path) -> None:
    part = bag_of(hash_key("late"), 5)
    others = [key for key in map(str, range(99)) if bag_of(hash_key(key), 5) != part]
    given = [{**row, "customer": others[i % len(others)]} for i, row in enumerate(rows(300))]
    given += [{"query": "last", "pos": ["answer"], "customer": "late"}]
    path = write(tmp_path / "a.jsonl", given)
    entry = DataEntry(path=DataRef(str(path)), key="customer", bag=Bag(parts=5, part=part))
    checked = check_entries([entry], readers=READERS, resolve=resolve)
    assert not checked.problems
    assert checked.heads[0].example.anchor == "last"


@pytest.mark.parametrize(("part", "words"), [(0, "at least 1"), (5, "there are 4 parts")])
def test_a_part_that_does_not_exist_is_refused(part: int, words: str) -> None:
    data = {"path": "x", "bag": {"parts": 4, "part": part}}
    with pytest.raises(RecipeError, match=words):
        parse_recipe({"steps": {"a": {"train": {"data": data}}}})


# ── keys ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing"),
        ("", "empty"),
        ("  ", "empty"),
        (True, "true or false"),
        (1.5, "a number"),
        (["c1"], "a list"),
        ({"id": 1}, "an object"),
    ],
)
def test_a_row_without_a_sound_key_is_refused_with_its_line(
    value: Any, words: str, tmp_path: Path
) -> None:
    given = rows(4)
    given[2]["customer"] = value
    with pytest.raises(DataError, match=rf"a.jsonl:3: 'customer' must be .* is {words}"):
        one(write(tmp_path / "a.jsonl", given))


def test_a_missing_column_of_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.jsonl:1: 'client' must be the row's key"):
        one(write(tmp_path / "a.jsonl", rows(3)), key="client")


def test_whole_numbers_and_words_are_the_same_key(tmp_path: Path) -> None:
    given = [{**row, "customer": (0, 1, " 2\t")[i % 3]} for i, row in enumerate(rows(9))]
    dataset = one(write(tmp_path / "a.jsonl", given), forget=(Forget(keys=("1",)),))
    assert anchors(dataset) == [f"question {i}" for i in range(9) if i % 3 != 1]
    assert dataset[1].key == "2"


def test_a_key_inside_a_record_is_found(tmp_path: Path) -> None:
    given = [
        {"query": r["query"], "pos": r["pos"], "meta": {"id": r["customer"]}} for r in rows(12)
    ]
    dataset = one(write(tmp_path / "a.jsonl", given), key="meta.id")
    assert dataset[3].key == "c3"


@pytest.mark.parametrize("column", ["label", "category", "score", "type", "prompt"])
def test_the_column_of_keys_is_no_part_of_the_example(column: str, tmp_path: Path) -> None:
    given = [{"query": r["query"], "pos": r["pos"], column: r["customer"]} for r in rows(12)]
    dataset = one(write(tmp_path / "a.jsonl", given), key=column)
    assert dataset.info.task == "retrieval"
    assert dataset[0].label is None
    assert dataset[0].positive_scores is None
    assert dataset.prompt == ""


def test_texts_alone_may_have_keys(tmp_path: Path) -> None:
    given = [{"text": f"text {i}", "customer": "a" if i < 3 else "b"} for i in range(9)]
    dataset = one(write(tmp_path / "a.jsonl", given), forget=(Forget(keys=("a",)),))
    assert dataset.info.task == "text"
    assert len(dataset) == 6


def test_a_column_may_be_key_and_anchor_if_both_are_named(tmp_path: Path) -> None:
    given = [{"query": r["query"], "pos": r["pos"]} for r in rows(5)]
    options = {"key": "query", "columns": Columns(anchor="query", positive="pos")}
    dataset = one(write(tmp_path / "a.jsonl", given), **options)
    assert dataset[4].key == dataset[4].anchor == "question 4"


def test_written_sets_keep_their_keys(tmp_path: Path) -> None:
    dataset = one(write(tmp_path / "a.jsonl", rows(24)))
    (tmp_path / "out").mkdir()
    write_catalogue(tmp_path / "out", [("set", dataset, (dataset[i] for i in range(24)))])
    (again,) = load(tmp_path / "out", name=None, key=None)
    assert [again[i].key for i in range(24)] == [f"c{i % 12}" for i in range(24)]


# ── forgotten keys ──────────────────────────────────────────────────────────────────────────────


def test_a_set_without_forgotten_rows_equals_one_that_never_had_them(tmp_path: Path) -> None:
    never = write(
        tmp_path / "never.jsonl", [r for r in rows() if r["customer"] not in ("c1", "c7")]
    )
    less = one(write(tmp_path / "a.jsonl", rows()), forget=(Forget(keys=("c1", " c7 ")),))
    assert less.fingerprint == one(never).fingerprint
    assert anchors(less) == anchors(one(never))
    assert less.left_out == 20


@pytest.mark.parametrize("text", ["c1\nc7\n", "\ufeffc7\r\n\r\n  c1  \r\nc1\r\n"])
def test_a_file_lists_keys_line_by_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "gone.txt").write_bytes(text.encode())
    path = write(tmp_path / "a.jsonl", rows())
    less = one(path, forget=(Forget(file=DataRef("gone.txt", tmp_path)),))
    assert not {less[i].key for i in range(len(less))} & {"c1", "c7"}
    assert len(less) == 100


def test_a_listed_row_means_the_row_of_its_content(tmp_path: Path) -> None:
    plain = [{"query": r["query"], "pos": r["pos"]} for r in rows(6)]
    (tmp_path / "gone.txt").write_text(json.dumps({"anchor": "question 4", "positive": "answer 4"}))
    path = write(tmp_path / "a.jsonl", plain)
    less = one(path, key=None, forget=(Forget(file=DataRef("gone.txt", tmp_path)),))
    assert anchors(less) == [f"question {i}" for i in (0, 1, 2, 3, 5)]


def test_salted_lists_keep_no_key_and_find_all(tmp_path: Path) -> None:
    first, second = (KeyList.of([hash_key("c1"), hash_key("c7")]) for _ in range(2))
    assert not first.digests & second.digests
    assert hash_key("c1") not in first.digests
    (tmp_path / "gone.json").write_text(json.dumps(first.plain))
    assert KeyList.read(tmp_path / "gone.json") == first
    path = write(tmp_path / "a.jsonl", rows())
    less = one(path, forget=(Forget(file=DataRef("gone.json", tmp_path)),))
    assert len(less) == 100
    more = first.with_keys([hash_key("c2")])
    assert hash_key("c2") in more
    assert hash_key("c1") in more
    assert hash_key("c3") not in more


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gone.txt", b"", "lists no key"),
        ("gone.txt", b"\n  \n", "lists no key"),
        ("gone.txt", b"c1\n\xff\xfe", "not UTF-8"),
        ("gone.txt", b"c1\nc\x002\n", r"gone.txt:2: the key has control characters"),
        ("gone.txt", b'{"query": 3}', r"gone.txt:1: "),
        ("gone.txt", b'{"query": ', r"gone.txt:1: not JSON"),
        ("gone.json", b"c1\n", "no list of hashed keys"),
        ("gone.json", b"[]", "no list of hashed keys"),
        ("gone.json", b'{"format": 1, "salt": "00", "keys": "00"}', "no list of hashed keys"),
        ("gone.json", b'{"format": 1, "salt": "00", "keys": ["00"]}', "32 hex digits"),
        ("gone.json", b'{"format": 1, "salt": "x", "keys": []}', "no list of hashed keys"),
        ("other.txt", b"c1\n", "there is no such"),
    ],
)
def test_an_unsound_list_of_keys_is_refused(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    place = "gone.txt" if name == "other.txt" else name
    path = write(tmp_path / "a.jsonl", rows(4))
    with pytest.raises(DataError, match=words):
        one(path, forget=(Forget(file=DataRef(str(tmp_path / place))),))


@pytest.mark.parametrize("given", [{}, {"keys": ("",)}, {"keys": ("a", " ")}])
def test_keys_to_forget_are_given_and_not_empty(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="key"):
        Forget(**given)


def test_forgetting_every_row_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows(4, customers=1))
    with pytest.raises(DataError, match=r"a.jsonl: no row is of a key that is not forgotten"):
        one(path, forget=(Forget(keys=("c0",)),))


def test_a_catalogue_forgets_for_all_of_its_sets_and_each_for_itself(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", rows())
    (tmp_path / "gone.txt").write_text("c2")
    (tmp_path / "datasets.yaml").write_text(
        "forget: {keys: [c1]}\ntrain:\n"
        "- {name: a, file: a.jsonl, key: customer, forget: {file: gone.txt}}\n"
        "- {name: b, file: b.jsonl, key: customer}\n"
    )
    sets = load(tmp_path, name=None, key=None, forget=(Forget(keys=("c3",)),))
    gone = [{f"c{i}" for i in range(12)} - {d[i].key for i in range(len(d))} for d in sets]
    assert gone == [{"c1", "c2", "c3"}, {"c1", "c3"}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("forget: {key: [a]}\n", r"datasets.yaml:1: there is no 'key' here.*keys"),
        ("forget: {}\n", r"datasets.yaml:1: give the keys to forget"),
        ("forget: {keys: a}\n", r"datasets.yaml:1: expected a list"),
        ("forget: {keys: ['']}\n", r"datasets.yaml:1: a key to forget is empty"),
        ("forget: a\n", r"datasets.yaml:1: expected names with values"),
    ],
)
def test_a_catalogue_that_misspells_what_to_forget_is_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "datasets.yaml").write_text(f"{text}train: [{{name: a, file: a.jsonl}}]\n")
    with pytest.raises(DataError, match=words):
        load_catalogue(tmp_path)


def test_rows_are_stored_once_for_each_choice_of_keys(tmp_path: Path) -> None:
    path, store = write(tmp_path / "a.jsonl", rows()), tmp_path / "store"
    choices: list[dict[str, Any]] = [
        {},
        {"bag": Bag(parts=2, part=1)},
        {"bag": Bag(parts=2, part=2)},
        {"forget": (Forget(keys=("c1",)),)},
        {"forget": (Forget(keys=("c2",)),)},
        {"key": None},
    ]
    found = [anchors(load(path, store, **choice)[0]) for choice in choices for _ in range(2)]
    assert found[::2] == found[1::2]
    folders = list((store / "examples").iterdir())
    assert len(folders) == len(choices)
    hashes = [StoredDataset.read_key_hashes(folder) or () for folder in folders]
    # Without keys none are kept; they are computed when somebody asks.
    assert sorted(map(len, hashes)) == sorted(map(len, [*found[:-2:2], []]))
    (plain,) = load(path, store, key=None)
    assert len(set(plain.key_hashes())) == len(rows())

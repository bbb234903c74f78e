"""Images and clips inside texts: references that data cannot forge, and keys that go by content."""

from __future__ import annotations

import pytest
from emberge import Media, join_parts, show_media, split_parts
from emberge.contracts import has_media, list_media_kinds, make_content_key, strip_media_marks
from emberge.hashes import hash_texts

CAT = Media("image", "0" * 32, "/somewhere/a: cat.png")
MEOW = Media("audio", "1" * 32, "/somewhere/meow.wav")


def test_parts_come_back_in_their_order() -> None:
    parts = ["a ", CAT, " and ", MEOW, CAT]
    assert split_parts(join_parts(parts)) == parts
    assert split_parts("only text") == ["only text"]
    assert split_parts("") == []


def test_kinds_are_named_in_one_order() -> None:
    assert list_media_kinds([join_parts([MEOW]), "text", join_parts([CAT])]) == ("image", "audio")
    assert list_media_kinds(["text"]) == ()


def test_readable_text_names_the_file() -> None:
    assert show_media(join_parts(["a ", CAT])) == "a [image a: cat.png]"


def test_a_content_key_ignores_paths() -> None:
    moved = Media("image", CAT.hash, "/elsewhere/b.png")
    other = Media("image", "2" * 32, CAT.path)
    assert make_content_key(join_parts([CAT])) == make_content_key(join_parts([moved]))
    assert make_content_key(join_parts([CAT])) != make_content_key(join_parts([other]))
    keys = [hash_texts([join_parts([one])]) for one in (CAT, moved, other)]
    assert keys[0] == keys[1] != keys[2]
    assert make_content_key("text") == "text"


@pytest.mark.parametrize("text", [join_parts([CAT]), "\ufffc", "a \ufffcimage:x:y\ufffc", "plain"])
def test_text_of_data_never_refers_to_a_file(text: str) -> None:
    clean = strip_media_marks(text)
    assert not has_media(clean)
    assert split_parts(clean) == [clean]


def test_a_path_with_the_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="rename the file"):
        Media("image", "0" * 32, "a\ufffcb.png")

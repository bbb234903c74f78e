"""Images and clips in the columns of rows: paths and bytes become references within texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emberge.contracts import MEDIA_KINDS, Media, MediaKind, join_parts, strip_media_marks
from emberge.data.columns import find_media_kind
from emberge.errors import DataError
from emberge.media import MediaFolder

_FORMS = (
    "a medium is {image: path}, {audio: path}, {bytes: …}, or several parts: "
    '{parts: [{image: path}, "a text"]}'
)
# First bytes of sound files; a file without any of them counts as an image.
_SOUND_SIGNATURES = (
    *(b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"ID3"),
    *(b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"),
)


class MediaValues:
    """Reader of a data set's media, which reads each file once; `hashes` has those of the files' content.

    Files are decoded where a model reads them.
    """

    def __init__(self, folder: MediaFolder | None = None) -> None:
        self.folder = folder or MediaFolder()
        self.hashes: set[str] = set()
        self._files: dict[tuple[MediaKind, str], Media] = {}

    def read(self, value: Any, column: str) -> str | None:
        """Return a column's images and clips as one text with references; None for a value without media.

        Strings are paths in a column named `image` or `audio`; in other columns, media are objects.

        Raises:
            DataError: if the value has an unknown form, or a medium cannot be read.
        """
        kind = find_media_kind(column)
        if kind is not None and value:
            return join_parts([self._read_medium(kind, value, column)])
        return self.read_object(value, column) if isinstance(value, Mapping) else None

    def read_object(self, value: Mapping[str, Any], column: str) -> str:
        """Return the value of a column with media, as one text with references.

        Raises:
            DataError: if the value has an unknown form, or a medium cannot be read.
        """
        return join_parts(self._read_parts(value, column))

    def save_bytes(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row with the bytes of its columns written to files, and paths in their place."""
        return {name: self._save_column(value) for name, value in row.items()}

    def _save_column(self, value: Any) -> Any:
        content = value.get("bytes") if isinstance(value, Mapping) else None
        if not isinstance(content, bytes) or not content:
            return value
        return {"path": self.folder.add_bytes(_find_kind(content), content).path}

    def _read_parts(self, value: Any, column: str) -> list[str | Media]:
        if isinstance(value, str):
            return [strip_media_marks(value)]
        if not isinstance(value, Mapping):
            raise DataError(f"'{column}' has {type(value).__name__} as a part; {_FORMS}")
        fields = _drop_empty(value)
        if "parts" in fields:
            listed_parts = _require_list(fields, column)
            return [part for item in listed_parts for part in self._read_parts(item, column)]
        if "bytes" in fields or set(fields) == {"path"}:
            return [self._read_stored(fields, column)]
        if not set(fields) & set(MEDIA_KINDS) or not set(fields) <= {"text", *MEDIA_KINDS}:
            raise DataError(
                f"'{column}' must be text, not an object ({', '.join(value) or 'empty'}); {_FORMS}"
            )
        if not isinstance(fields.get("text", ""), str):
            raise DataError(f"'{column}' has no text as text of a part; {_FORMS}")
        return [
            strip_media_marks(content)
            if name == "text"
            else self._read_medium(name, content, column)  # type: ignore[arg-type]
            for name, content in fields.items()
        ]

    def _read_medium(self, kind: MediaKind, value: Any, column: str) -> Media:
        """Return the reference to an image or a clip, whose value is a path, bytes, or a mapping of these."""
        if isinstance(value, str):
            return self._read_file(kind, value)
        if isinstance(value, bytes):
            return self._note(self.folder.add_bytes(kind, value))
        if isinstance(value, Mapping):
            return self._read_stored(_drop_empty(value), column, kind)
        raise DataError(f"'{column}' has {type(value).__name__} as {kind}; {_FORMS}")

    def _read_stored(
        self, fields: Mapping[str, Any], column: str, kind: MediaKind | None = None
    ) -> Media:
        """Return the reference to an image or sound as `datasets` stores it in a column."""
        content, path = fields.get("bytes"), fields.get("path")
        if isinstance(content, bytes) and content:
            kind = kind or _find_kind(content)
            return self._note(self.folder.add_bytes(kind, content))
        if not isinstance(path, str):
            raise DataError(f"'{column}' has neither bytes nor a path; {_FORMS}")
        if kind is None:
            kind = _find_kind(self.folder.read_file(path)[1])
        return self._read_file(kind, path)

    def _read_file(self, kind: MediaKind, path: str) -> Media:
        if (kind, path) not in self._files:
            self._files[kind, path] = self._note(self.folder.add_file(kind, path))
        return self._files[kind, path]

    def _note(self, media: Media) -> Media:
        self.hashes.add(media.hash)
        return media


def _require_list(fields: Mapping[str, Any], column: str) -> Sequence[Any]:
    listed_parts = fields["parts"]
    if len(fields) > 1 or not isinstance(listed_parts, list | tuple) or not listed_parts:
        raise DataError(f"'{column}' needs a list under parts, and nothing else; {_FORMS}")
    if any(isinstance(item, Mapping) and "parts" in item for item in listed_parts):
        raise DataError(f"'{column}' has parts within parts; write them as one list")
    return listed_parts


def _drop_empty(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: content for name, content in value.items() if content is not None}


def _find_kind(content: bytes) -> MediaKind:
    is_sound = content.startswith(_SOUND_SIGNATURES) and content[8:12] != b"WEBP"
    return "audio" if is_sound else "image"

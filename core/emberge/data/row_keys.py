"""Keys of rows: the bag that a key puts a row into, and the keys whose rows are forgotten.

A key is a row's value in the column that the entry names, or else the row's content: its anchor and
positives. Only hashes of keys are kept: 16 bytes of SHA-256. A list of forgotten keys that a run keeps, or a
result has, is salted as well, so that equal keys of two lists cannot be recognised without knowing them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from emberge.contracts import BadRow, content_key
from emberge.data.entry import Bag, Columns
from emberge.data.rows.columns import LayoutError
from emberge.data.rows.line_files import parse_json_row
from emberge.data.rows.row_parser import Row, RowError, RowParser
from emberge.errors import DataError
from emberge.files import UnsoundFileError, read_regular
from emberge.wording import printable

DIGEST_BYTES = 16
"""Bytes of the hash of a key."""

KEY_FILE_BYTES = 1 << 30
"""Largest number of bytes of a list of keys."""


# Unicode's separator of records, between the texts of a row without a key of its own.
_BETWEEN_TEXTS = "\x1e"


def hash_key(key: str) -> bytes:
    """Return the hash of a key, 16 bytes."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()[:DIGEST_BYTES]


def hash_row_key(row: Row) -> bytes:
    """Return the hash of a row's key: of its own key or, without one, of its anchor and positives."""
    if row.key is not None:
        return hash_key(row.key)
    return hash_key(content_key(_BETWEEN_TEXTS.join((row.anchor, *row.positives))))


def add_salt(digest: bytes, salt: bytes) -> bytes:
    """Return the salted hash of a key's hash; the hash itself without a salt."""
    return sha256(salt + digest).digest()[:DIGEST_BYTES] if salt else digest


@dataclass(frozen=True)
class KeyList:
    """A list of keys as salted hashes of 16 bytes each; the salt may be empty."""

    salt: bytes
    digests: frozenset[bytes]

    def __contains__(self, digest: bytes) -> bool:
        """Return whether the key with this hash, which is not salted, is in the list."""
        return add_salt(digest, self.salt) in self.digests

    @classmethod
    def of(cls, digests: Iterable[bytes], salt: bytes | None = None) -> KeyList:
        """Build a list of keys from their hashes; without a `salt`, a new one is drawn."""
        salt = secrets.token_bytes(DIGEST_BYTES) if salt is None else salt
        return cls(salt, frozenset(add_salt(digest, salt) for digest in digests))

    @classmethod
    def read(cls, path: Path) -> KeyList:
        """Read a list: a text file of keys, or a `.json` file of salted hashes, as runs keep it.

        Raises:
            DataError: if the file is missing or cannot be understood; names file and line.
        """
        if path.suffix != ".json":
            return cls.of(cls.read_hashes(path), b"")
        try:
            return cls.of_plain(json.loads(_read_file(path)))
        except ValueError as error:
            raise DataError(
                f"{printable(path)}: no list of hashed keys: {printable(error)}"
            ) from None

    @staticmethod
    def read_hashes(path: Path) -> list[bytes]:
        """Return the hash of each key that a text file lists, 16 bytes, in order, without repetitions.

        A line has one key. A line that is a JSON object is a row without a key of its own, and means rows of
        the same anchor and positives.

        Raises:
            DataError: if the file is missing, no text, or lists no key; names the line.
        """
        try:
            text = _read_file(path).decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{printable(path)}: the list of keys is not UTF-8 text") from None
        digests = dict.fromkeys(_read_lines(path, text))
        if not digests:
            raise DataError(f"{printable(path)}: lists no key; write one key in each line")
        return list(digests)

    def with_keys(self, digests: Iterable[bytes]) -> KeyList:
        """Return the list with further keys, under the same salt."""
        return KeyList(self.salt, self.digests | KeyList.of(digests, self.salt).digests)

    @property
    def plain(self) -> dict[str, Any]:
        """The list as JSON values."""
        return {
            "format": 1,
            "salt": self.salt.hex(),
            "keys": sorted(digest.hex() for digest in self.digests),
        }

    @classmethod
    def of_plain(cls, record: Any) -> KeyList:
        """Read a list from JSON values.

        Raises:
            ValueError: if they are no list of keys.
        """
        if not isinstance(record, Mapping) or record.get("format") != 1:
            raise ValueError("it is no list of keys of format 1")
        keys = record.get("keys")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ValueError("its keys are no list of hashes")
        salt, digests = bytes.fromhex(str(record.get("salt"))), frozenset(map(bytes.fromhex, keys))
        if any(len(digest) != DIGEST_BYTES for digest in digests):
            raise ValueError(f"a key's hash has {2 * DIGEST_BYTES} hex digits")
        return cls(salt, digests)


def _read_file(path: Path) -> bytes:
    try:
        return read_regular(path, limit=KEY_FILE_BYTES)
    except UnsoundFileError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(
            f"{printable(path)}: there is no such list of keys ({error.strerror})"
        ) from None


def _read_lines(path: Path, text: str) -> Iterator[bytes]:
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        key = line.strip()
        if not key:
            continue
        if key.startswith("{"):
            yield _hash_listed_row(f"{printable(path)}:{number}", key)
        elif not key.isprintable():
            raise DataError(
                f"{printable(path)}:{number}: the key has control characters: '{printable(key, 80)}'; "
                "write one key in each line, as plain text"
            )
        else:
            yield hash_key(key)


def _hash_listed_row(place: str, line: str) -> bytes:
    row = parse_json_row(line.encode(), 0)
    try:
        if isinstance(row, BadRow):
            raise RowError(row.message)
        return hash_row_key(RowParser(Columns())(row))
    except (RowError, LayoutError) as error:
        raise DataError(f"{place}: {printable(error)}") from None


@dataclass(frozen=True)
class RowSelection:
    """The choice of a file's rows by their keys: those of one bag, without the forgotten ones."""

    bag: Bag | None = None
    forgotten: tuple[KeyList, ...] = field(default=(), repr=False)

    @property
    def is_partial(self) -> bool:
        """True if rows may be left out."""
        return self.bag is not None or bool(self.forgotten)

    def takes(self, row: Row) -> bool:
        """Return whether the row is in the bag and not forgotten."""
        if not self.is_partial:
            return True
        digest = hash_row_key(row)
        if self.bag is not None and bag_of(digest, self.bag.parts) != self.bag.part:
            return False
        return not any(digest in keys for keys in self.forgotten)

    @property
    def plain(self) -> list[Any]:
        """The selection as JSON values, in the same order for equal lists of keys."""
        bag = [self.bag.parts, self.bag.part] if self.bag is not None else None
        keys = [
            [k.salt.hex(), sha256(b"".join(sorted(k.digests))).hexdigest()] for k in self.forgotten
        ]
        return [bag, sorted(keys)]

    @property
    def words(self) -> str:
        """The selection in words, for messages about rows that it leaves out."""
        words = []
        if self.bag is not None:
            words.append(f"in part {self.bag.part} of {self.bag.parts}")
        if self.forgotten:
            words.append("of a key that is not forgotten")
        return " and ".join(words)


def bag_of(digest: bytes, parts: int) -> int:
    """Return the part, from 1 to `parts`, of a key's hash; it depends on nothing but the key."""
    return int.from_bytes(digest[:8], "big") % parts + 1


def split_digests(content: bytes) -> Sequence[bytes]:
    """Return the hashes that follow one another in a file of hashes."""
    return [content[i : i + DIGEST_BYTES] for i in range(0, len(content), DIGEST_BYTES)]

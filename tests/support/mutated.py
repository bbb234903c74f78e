"""Damaged and malicious weight files and indices, each from its number alone."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

Header = dict[str, Any]
_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I64": 8, "I32": 4}
_SIZES |= {"U8": 1, "BOOL": 1, "I16": 2}
HUGE = (
    2**31,
    2**32,
    2**53,
    2**60,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    2**80,
    10**30,
    10**400,
)
ODD: tuple[Any, ...] = (
    *HUGE,
    *(-n for n in HUGE),
    *(0, -1, 1, 1.0, 0.5, 1e3, -0.0, float("nan"), float("inf"), True, False, None),
    *("", "4", [], [0], [[1]], {}, {"F32": None}, [1, 2, 3]),
)
NAMES = (
    "../w",
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "",
    " ",
    "a\x00b",
    "a\nb",
    "\x1b[31mred",
    "\u202egnp.exe",
    "\ud800",
    "w" * 999,
    "w" * 1001,
    "w" * 100_000,
    "gewicht·é·重み·🎂",
    "__metadata__",
    "__metadata__.w",
    "constructor",
    "C:\\w",
    "a/b/c",
)
TYPES = (
    *_SIZES,
    "F4",
    "F6_E2M3",
    "F6_E3M2",
    "f32",
    "F31",
    "F128",
    "",
    "F32\x00",
    "STR",
    "C64",
    "U64",
)


def weights(number: int) -> bytes:
    """The bytes of a safetensors file, mutated once to three times; every eleventh is as it should be."""
    draw = random.Random(f"weights {number}")
    header, data = _sound(draw)
    return _mutated(draw, header, data, draw.randint(1, 3) if number % 11 else 0)


def change_weights(draw: random.Random, raw: bytes) -> bytes:
    """Mutate a sound safetensors file once to three times."""
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    return _mutated(draw, header, raw[8 + length :], draw.randint(1, 3))


def change_text(draw: random.Random, text: bytes) -> bytes:
    """Mutate JSON as text."""
    return _change_text(draw, text)


def change_bytes(draw: random.Random, raw: bytes) -> bytes:
    """Cut, repeat, fill or flip bytes of any file."""
    return _change_bytes(draw, raw)


def _mutated(draw: random.Random, header: Header, data: bytes, times: int) -> bytes:
    text: bytes | None = None
    raw: bytes | None = None
    for _ in range(times):
        kind = draw.choice(("entry", "entry", "header", "text", "bytes"))
        if kind == "entry" and text is None:
            _change_entry(draw, header)
        elif kind == "header" and text is None:
            data = _change_header(draw, header, data)
        elif kind == "text" and raw is None:
            text = _change_text(draw, _encoded(header) if text is None else text)
        else:
            raw = _change_bytes(
                draw, raw or _file(_encoded(header) if text is None else text, data)
            )
    return raw or _file(_encoded(header) if text is None else text, data)


def index(number: int, sound: Header, outside: str) -> bytes:
    """An index of shards, mutated; `outside` is a file that it must not lead to."""
    draw = random.Random(f"index {number}")
    content = json.loads(json.dumps(sound))
    weights = content["weight_map"]
    for _ in range(draw.randint(1, 3) if number % 11 else 0):
        change = draw.randrange(5)
        name = draw.choice(list(weights) or ["w"])
        if change == 0:
            weights[name] = draw.choice(_places(draw, outside))
        elif change == 1:
            weights[draw.choice(NAMES)] = draw.choice([*set(map(str, weights.values())), "gone"])
        elif change == 2:
            weights.pop(name, None)
        elif change == 3:
            weights[name] = draw.choice(ODD)
        else:
            content[draw.choice(("weight_map", "metadata"))] = draw.choice((*ODD, weights))
            weights = content["weight_map"] if isinstance(content["weight_map"], dict) else {}
    text = _encoded(content)
    if number % 3 == 0 and number % 11:
        text = _change_text(draw, text)
    return text


def _places(draw: random.Random, outside: str) -> Sequence[str]:
    up = "../" * draw.randint(1, 9)
    inside = (
        "loop.safetensors",
        "model.safetensors.index.json",
        "folder",
        "folder/../../x",
        "./",
        ".",
    )
    odd = (
        "one.safetensors\x00",
        "one.safetensors\n",
        "x" * 300,
        "x" * 5000,
        "\ud800",
        "..\\x",
        "C:x",
    )
    return (*inside, *odd, *NAMES, outside, f"{up}{outside.lstrip('/')}", f"folder/{up}x")


def _sound(draw: random.Random) -> tuple[Header, bytes]:
    header: Header = {}
    if draw.random() < 0.5:
        header["__metadata__"] = {"format": "pt", "über": "x\n"}
    end = 0
    for number in range(draw.randint(0, 5)):
        dtype = draw.choice(list(_SIZES))
        shape = [draw.choice((0, 1, 1, 2, 3, 5)) for _ in range(draw.randint(0, 3))]
        size = _SIZES[dtype]
        for dimension in shape:
            size *= dimension
        header[f"w{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return header, draw.randbytes(end)


def _encoded(header: Any) -> bytes:
    return json.dumps(header).encode()


def _file(text: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text + data


def _change_entry(draw: random.Random, header: Header) -> None:
    """Change what is said of one tensor."""
    names = [n for n, entry in header.items() if n != "__metadata__" and isinstance(entry, dict)]
    if not names:
        return
    name = draw.choice(names)
    entry: Header = header[name]
    field = draw.choice(("dtype", "shape", "data_offsets", "data_offsets", "shape"))
    value = entry.get(field)
    if draw.random() < 0.15:
        entry.pop(field, None)
    elif field == "dtype":
        entry[field] = draw.choice((*TYPES, *ODD))
    elif isinstance(value, list) and draw.random() < 0.8:
        _change_numbers(draw, value)
    else:
        entry[field] = draw.choice((*ODD, [1] * 65, [1] * 64, [0, 2**40, 2**40], [2**32, 2**32]))
    if draw.random() < 0.1:
        header[name] = draw.choice(
            (None, [entry.get(f) for f in ("dtype", "shape", "data_offsets")], 3)
        )
    if draw.random() < 0.1:
        entry["extra"] = draw.choice(ODD)


def _change_numbers(draw: random.Random, values: list[Any]) -> None:
    place = draw.randrange(len(values) + 1)
    if place == len(values):
        values.append(draw.choice((0, 1, 2, *ODD)))
    elif isinstance(values[place], int) and draw.random() < 0.7:
        values[place] += draw.choice((-8, -4, -1, 1, 4, 8, 2**32, 2**63, 2**64))
    else:
        values[place] = draw.choice(ODD)
    if draw.random() < 0.1:
        values.reverse()


def _change_header(draw: random.Random, header: Header, data: bytes) -> bytes:
    """Change names, order, metadata, or the bytes that belong to it."""
    change = draw.randrange(6)
    names = list(header)
    if change == 0 and names:
        header[draw.choice(NAMES)] = header.pop(draw.choice(names))
    elif change == 1:
        odd = (*ODD, {"a": 1}, {"a": None}, {"\ud800": "x"}, {"a": "\ud800"}, {"": ""})
        header["__metadata__"] = draw.choice(odd)
    elif change == 2:  # the same bytes twice
        header["again"] = header.get("w0")
    elif change == 3:
        return data + draw.randbytes(draw.randint(1, 9))
    elif change == 4:
        return data[: draw.randint(0, len(data))]
    else:
        shuffled = draw.sample(list(header.items()), len(header))
        header.clear()
        header.update(shuffled)
    return data


def _change_text(draw: random.Random, text: bytes) -> bytes:
    """Change the JSON as text."""
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: draw.choice((b" ", b"\n\t ", b"\xef\xbb\xbf", b"\0", b"[", b"{}")) + text,
        lambda: text + draw.choice((b"  ", b"\0\0", b"}", b"x", b"\n", b"{}")),
        lambda: _twice(draw, text),
        lambda: _nested(draw, text),
        lambda: text.replace(b'"', draw.choice((b"'", b"")), draw.randint(1, 4)),
        lambda: text.replace(
            b"w", draw.choice((b"\xff", b"\xc3", b"\\ud800", b"\\u0000", b"\n")), 1
        ),
        lambda: text.replace(b"0", draw.choice((b"-0", b"00", b"0.0", b"0e0", b"NaN", b"-1")), 1),
        lambda: text.replace(b",", draw.choice((b",,", b"", b";", b", //\n")), 1),
        lambda: text[: draw.randint(0, len(text))],
        lambda: _flipped(draw, text),
        lambda: text.replace(b"4", b"9" * draw.choice((20, 400, 5000)), 1),
    )
    return draw.choice(changes)()


def _twice(draw: random.Random, text: bytes) -> bytes:
    """Write a part of a mapping twice."""
    parts = text[1:-1].split(b", ")
    place = draw.randrange(len(parts))
    parts.insert(place, parts[place])
    return b"{" + b", ".join(parts) + b"}"


def _nested(draw: random.Random, text: bytes) -> bytes:
    depth = draw.choice((2, 90, 98, 99, 120, 140, 900, 5000, 200_000))
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    nest = opening * depth + b"0" + closing * depth
    old = draw.choice((b'"dtype"', b'"w0"', b'"__metadata__"'))
    return text.replace(old, b'"nest": ' + nest + b", " + old, 1)


def _change_bytes(draw: random.Random, raw: bytes) -> bytes:
    """Change the file."""
    (length,) = struct.unpack("<Q", raw[:8]) if len(raw) >= 8 else (0,)
    size = len(raw)
    near = (0, 1, 7, length - 1, length + 1, length + 8, size - 9, size - 8, size - 7, size)
    far = (2**31, 2**32, 10**8, 10**8 + 1, 2**62, 2**63, 2**64 - 9, 2**64 - 8, 2**64 - 1)
    claimed = struct.pack("<Q", draw.choice((*near, *far)) % 2**64)
    cut, other = sorted(draw.randint(0, size) for _ in range(2))
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: claimed + raw[8:],
        lambda: raw[:cut],
        lambda: raw[:cut] + raw[other:],
        lambda: raw[:cut] + draw.randbytes(draw.randint(1, 40)) + raw[cut:],
        lambda: raw[:other] + raw[cut:],
        lambda: raw[:cut] + bytes(other - cut) + raw[other:],
        lambda: _flipped(draw, raw),
        lambda: _flipped(draw, raw[: 8 + length]) + raw[8 + length :],
    )
    return draw.choice(changes)()


def _flipped(draw: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(draw.choice((1, 1, 2, 8)) if raw else 0):
        changed[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return bytes(changed)

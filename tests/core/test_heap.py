"""What is freed between blocks that live on goes back to the system when asked."""

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest
from emberge.interpreter import return_freed_memory

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="only glibc keeps freed memory between blocks",
)
SIZE = 64 << 10


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel names no RssAnon")


def test_holes_between_living_blocks_are_given_back() -> None:
    blocks = [np.ones(SIZE, np.uint8) for _ in range(2000)]
    kept = blocks[::20]
    freed = (len(blocks) - len(kept)) * SIZE
    del blocks
    before = resident()
    return_freed_memory()
    assert before - resident() > freed // 2
    assert all(block.all() for block in kept)

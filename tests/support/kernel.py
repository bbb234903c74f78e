"""A notebook's kernel, in which tests run cells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Kernel:
    """A running kernel: cells go in, messages come out."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, cell: str) -> list[dict[str, Any]]:
        """Run a cell and return what it shows."""
        wanted = self._client.execute(cell)
        messages: list[dict[str, Any]] = []
        end = time.monotonic() + 300
        while time.monotonic() < end:
            message = self._client.get_iopub_msg(timeout=300)
            if message["parent_header"].get("msg_id") != wanted:
                continue
            if message["content"].get("execution_state") == "idle":
                return messages
            if message["msg_type"] not in ("status", "execute_input"):
                messages.append(message)
        raise TimeoutError("the cell takes longer than five minutes")


def texts(messages: list[dict[str, Any]]) -> list[str]:
    """Every text that a cell displayed, printed or raised, in order."""
    found = []
    for message in messages:
        content = message["content"]
        found += [content["data"]["text/plain"]] if "data" in content else []
        found += [content["text"]] if message["msg_type"] == "stream" else []
        found += content["traceback"] if message["msg_type"] == "error" else []
    return found


@contextmanager
def kernel(folder: Path) -> Iterator[Kernel]:
    """A kernel whose current folder is this one; it ends with the block."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(folder))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=300)
        yield Kernel(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)

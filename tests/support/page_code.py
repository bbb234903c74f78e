"""Code of the documentation's pages, for tests of what it reads."""

from __future__ import annotations

import re
from typing import Any

from tests.support.places import ROOT


def run_block(page: str, word: str) -> dict[str, Any]:
    """Run the first Python with `word` of a page of docs/, and return its names."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(next(code for code in found if word in code), names)
    return names

"""The Python programs of a page in docs/user, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parents[2] / "docs" / "user"


def program(page: str, section: str, part: str) -> str:
    """The one ```python block of a section, by its heading, that has a text in it."""
    text = (PAGES / page).read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = [block for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if part in block]
    assert len(found) == 1, f"{len(found)} programs of {page}, {section!r}, have {part!r}"
    return found[0]

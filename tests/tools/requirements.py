"""Prints the build requirements of pyproject.toml, one a line, for pip (Python 3.10 has no tomllib)."""

import ast
import re
from pathlib import Path

text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
match = re.search(r"^requires = (\[.*?\])", text, re.MULTILINE | re.DOTALL)
assert match, "pyproject.toml has no build-system.requires"
print("\n".join(ast.literal_eval(match.group(1))))

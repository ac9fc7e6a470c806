"""The pages: what they link to, and the pages that other files name, are there; no page has a gap."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

sys.path.insert(0, str(ROOT / "tests" / "tools"))

from files_of_tests import cpp_path_of  # noqa: E402

FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
IN_CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
NAMED = re.compile(r"(?<![\w./-])docs/[\w./-]*\w")
PLACEHOLDER = re.compile(r"docs/results/(DATE|OLD|NEW)\b")  # of commands that write or read a record


def tracked_files() -> list[Path]:
    """What git knows, and what is new and not ignored."""
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(set(listed.split("\0"))) if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    """Empty for pictures."""
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode()


def anchors(text: str) -> set[str]:
    """Those that GitHub makes of the headings of a page."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        names = (slug if number == 0 else f"{slug}-{number}" for number in range(1000))
        found.add(next(name for name in names if name not in found))
    return found


def broken_links(page: Path) -> Iterator[str]:
    """The links of a page to files, or to headings, that are not there."""
    prose = IN_CODE.sub("", FENCED.sub("", page.read_text()))
    for link in LINK.findall(prose):
        if re.match(r"\w+:", link):  # https:, mailto:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_there = target.exists() and (
            not anchor or (target.suffix == ".md" and anchor in anchors(target.read_text()))
        )
        if not is_there:
            yield f"{page.name}: {link}"


def absent_pages(text: str, root: Path) -> list[str]:
    """Paths in docs that a text names and that are not there."""
    return [name for name in NAMED.findall(text) if not PLACEHOLDER.match(name) and not (root / name).exists()]


def test_every_link_of_every_page_leads_somewhere() -> None:
    pages = [path for path in tracked_files() if path.suffix == ".md"]
    assert ROOT / "README.md" in pages
    assert [wrong for page in pages for wrong in broken_links(page)] == []


def test_every_page_that_a_file_names_is_there() -> None:
    files = tracked_files()
    assert sum(len(NAMED.findall(text_of(path))) for path in files) > 50
    wrong = {str(path.relative_to(ROOT)): absent_pages(text_of(path), ROOT) for path in files}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_the_index_has_a_line_for_every_page() -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if path.parent.name != "results"}
    lines = re.findall(r"^\* .+?\n(?![ ])", (docs / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    first_links = [LINK.findall(line)[0] for line in lines]
    assert sorted(first_links) == sorted(pages - {"README.md"} | {"../CONTRIBUTING.md"})


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(
        "# Other\n\n## What `x` is, and why\n\n## Again\n\n## Again\n\n```\n# code\n```\n"
    )
    good = ["other.md", "other.md#what-x-is-and-why", "other.md#again-1", "#page", "https://example.org/x.md", "."]
    bad = ["another.md", "folder/other.md", "other.md#what-x-is", "other.md#again-2", "other.md#code", "#other"]
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n`a[0](b)`\n\n" + "\n".join(f"[two\nlines]({link})" for link in good + bad))
    assert list(broken_links(page)) == [f"page.md: {link}" for link in bad]


def test_a_page_that_is_not_there_is_found(tmp_path: Path) -> None:
    folder = "docs"
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "here.md").touch()
    text = f"({folder}/here.md), {folder}/there.md. https://example.org/{folder}/x.md {folder}/results/DATE-GPU.json"
    assert absent_pages(text, tmp_path) == [f"{folder}/there.md"]


def test_no_page_has_a_gap() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGES.md", *(ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if re.search("@@|TODO|XXX", page.read_text(encoding="utf-8"))]


def test_every_test_that_a_page_names_is_there() -> None:
    """As `hosts/test_tcp.py::test_name`, and as `tcp_test: the beginning of its name` of a C++ test."""
    count = 0
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text()
        for file, name in re.findall(r"`([\w/]+\.py)::(test_\w+)`", text):
            assert re.search(rf"^def {name}\(", (ROOT / "tests" / "python" / file).read_text(), re.MULTILINE), name
            count += 1
        for file, name in re.findall(r"`(\w+_test): ([^`]+)`", text):
            assert name in cpp_path_of(file).read_text(), name
            count += 1
    assert count > 50

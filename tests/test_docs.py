"""Links of the pages lead somewhere: to files of the repository, and to headings in them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "ios_worker").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: small letters, words joined by hyphens, everything else left out."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(FENCED.sub("", page.read_text())):
        found = page if not target else (page.parent / target).resolve()
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def test_there_are_links() -> None:
    assert sum(len(LINK.findall(page.read_text())) for page in PAGES) > 20

"""What keeps people from using a page, found in the page itself: names, roles, structure, contrast.

These are the rules of WCAG 2 (A and AA) that a program can check and that a page of ours could
break. Each fault names the element.
"""

from pathlib import Path

from playwright.sync_api import Page

__all__ = ["faults"]

CHECK = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def faults(page: Page) -> list[str]:
    """The faults of a page as it is shown now."""
    found: list[str] = page.evaluate(CHECK)
    return found

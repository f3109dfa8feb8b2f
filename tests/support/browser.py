"""Chromium for tests of pages: Playwright drives a browser that is installed on the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["REQUIRED", "chromium"]

REQUIRED = "COORDGRAPH_REQUIRE_BROWSER"
"""Environment variable: 1 turns the skip of a test without a browser into a failure."""
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def _missing(reason: str) -> None:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}")
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running Chromium: the machine's own, else the one that `playwright install` has fetched.

    Skips the test, with the reason, where there is none.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _missing("Playwright is not installed; pip install 'coordgraph[browser]'")
        raise
    own = next(filter(None, map(shutil.which, NAMES)), None)
    options: dict[str, Any] = {"executable_path": own} if own else {}
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(**options)
        except Error as error:
            _missing(f"Chromium does not start: {str(error).splitlines()[0]}")
            raise
        try:
            yield browser
        finally:
            browser.close()

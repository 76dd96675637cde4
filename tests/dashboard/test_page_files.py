"""The page's files: served to strangers, so they hold nothing but the page, and load nothing from elsewhere."""

from __future__ import annotations

import re
from importlib.resources import files

import httpx
import pytest

from holdfast.dashboard.access import GuardedApp
from holdfast.dashboard.http import build_app
from holdfast.dashboard.page_files import PAGE_FILES
from tests.dashboard.fake_view import EVERYBODYS, FakeView, SameLoop

FOLDER = files("holdfast.dashboard") / "page"
SOURCES = {name: (FOLDER / name).read_text() for name, _ in PAGE_FILES.values()}


@pytest.mark.parametrize("path", PAGE_FILES)
async def test_each_file_is_served_with_its_kind(path: str) -> None:
    guarded = GuardedApp(build_app(FakeView(), SameLoop()), EVERYBODYS)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://master") as http:
        answer = await http.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, PAGE_FILES[path][1])
    assert answer.text == SOURCES[PAGE_FILES[path][0]]


def test_every_file_of_the_folder_is_served() -> None:
    assert {one.name for one in FOLDER.iterdir()} == set(SOURCES)


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = SOURCES["index.html"]
    assert re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"([^\"]*)\"", page) != []
    assert [one for one in re.findall(r"(?:src|href)=\"([^\"]*)\"", page) if not re.match(r"[/#](?!/)", one)] == []
    assert "@import" not in SOURCES["dashboard.css"]
    assert "url(" not in SOURCES["dashboard.css"]


def test_text_of_others_is_never_markup() -> None:
    """I17: keys and names are whatever their writers chose."""
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"):
        assert way not in SOURCES["dashboard.js"]
    assert not re.search(r"\son\w+=|<style|style=", SOURCES["index.html"]), "the policy would refuse it"


def test_every_element_that_the_script_names_is_there() -> None:
    named = set(re.findall(r"\bat\(\"([\w-]+)\"\)", SOURCES["dashboard.js"]))
    named |= set(re.findall(r"\bfill\(\"([\w-]+)\"", SOURCES["dashboard.js"]))
    assert len(named) > 20
    assert named - set(re.findall(r"\bid=\"([\w-]+)\"", SOURCES["index.html"])) == set()

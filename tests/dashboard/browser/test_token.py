"""Where identities matter the page asks for a token, and shows what its owner may see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.dashboard.access import Doorkeeper, GuardedApp
from holdfast.dashboard.http import build_app
from holdfast.dashboard.http_thread import HttpThread, serve_http
from holdfast.identity.identities import Identities
from holdfast.identity.roles import Role
from tests.dashboard.browser.chromium import PAGE_S, Page, chromium
from tests.dashboard.fake_view import FakeView, SameLoop
from tests.dashboard.test_access import entry
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
async def guarded() -> AsyncIterator[HttpThread]:
    view = FakeView()
    view.stopping = False
    identities = Identities([entry("reader", Role.READER), entry("operator", Role.OPERATOR)])
    server = await serve_http(GuardedApp(build_app(view, SameLoop()), Doorkeeper(identities)), "127.0.0.1", 0)
    yield server
    view.stopping = True
    await server.stop()


async def test_the_page_asks_for_a_token_and_shows_what_its_owner_may_see(page: Page, guarded: HttpThread) -> None:
    page.browser.get(f"http://{guarded.address}/")
    for token, is_known in (("wrong", False), ("secret of reader", True)):
        wait_until(lambda: page.one("#token").is_displayed(), PAGE_S, "it asks for a token")
        page.one("#token input").send_keys(token)
        page.one("#token button").click()
        page.until("#link" if is_known else "#token-note", "live" if is_known else "not known here")
    assert not page.one("#orders").is_displayed()
    page.until("#events-note", "for operators")
    assert page.run("return [localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
    page.run("sessionStorage.setItem('holdfast-token', 'secret of operator'); location.reload()")
    wait_until(lambda: page.one("#orders").is_displayed(), PAGE_S, "an operator has buttons")
    page.until("#events", "session created")

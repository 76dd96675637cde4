"""The dashboard in a real browser, of a real cluster: two masters and two nodes, and a primary that is killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.client.cache import Cache
from holdfast.messages.requests import ChangeSettings
from tests.dashboard.browser.chromium import PAGE_S, Keys, Page, chromium
from tests.failover.cluster import Cluster, call
from tests.waiting import wait_until

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
KEYS = 200


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("dashboard")
    with Cluster(folder, f"sqlite://{folder}/coordination.db?cluster=seen", nodes=2, size="32MiB") as found:
        found.standby()
        with found.connect() as cache:
            cache.put_many({f"block/{number}": bytes(20_000) for number in range(KEYS)})
            cache.put("pinned", bytes(1 << 20), hard_pin=True)
            cache.put(HOSTILE, b"x")
        yield found


@pytest.fixture
def cache(cluster: Cluster) -> Iterator[Cache]:
    with cluster.connect() as connected:
        yield connected


@pytest.fixture
def seen(page: Page, cluster: Cluster) -> Iterator[Page]:
    """The primary's page. No test leaves an error in the console."""
    page.open(cluster.primary().http)
    page.faults()
    yield page
    assert page.faults() == []


def test_the_first_look_shows_who_leads_and_what_there_is(seen: Page, cluster: Cluster) -> None:
    status = cluster.primary().status()
    assert f"{status['name']} leads, epoch {status['epoch']}; this is its page" in seen.text("#summary")
    seen.until("#masters tbody", "yes")
    assert len(seen.all("#masters tbody tr")) == 2
    assert [row.text for row in seen.all("#nodes tbody th")] == ["node-1", "node-2"]
    seen.until("#loss", "Nothing that was acknowledged would be lost")
    wait_until(lambda: len(seen.all("#maps svg.map")) == 2, PAGE_S, "both nodes have a map")
    seen.until("#kinds tbody tr[data-key=hard_pinned]", "1.0 MiB")
    wait_until(lambda: len(seen.all("#charts svg path[d^=M]")) > 4, PAGE_S, "the charts are drawn")
    seen.until("#events", "segment mounted")
    seen.until("#sessions", "2 safe, 0 in jeopardy")
    seen.until("#verbs tr[data-key=commit_puts]", "commit puts")
    assert [row.text.split()[0] for row in seen.all("#evictions tbody tr")] == ["watermark", "put", "quota", "disk"]
    assert seen.run(
        "return performance.getEntriesByType('resource').every((one) => one.name.startsWith(location.origin))"
    )


def test_what_others_wrote_is_text(seen: Page) -> None:
    seen.one("#search input").send_keys("<")
    seen.one("#search button").click()
    seen.until("#found tbody th", HOSTILE)
    seen.one("#found tbody button").click()
    assert HOSTILE in seen.until("#keys-note", "Stored: ")
    seen.until("#reasons", "last used")
    assert (seen.all("#found img"), "owned" in seen.browser.title) == ([], False)
    seen.one("#explain input").send_keys("no such key")
    seen.one("#explain button").click()
    seen.until("#reasons", "no object is stored under this key")


def test_a_map_is_read_with_the_pointer_and_the_keyboard(seen: Page) -> None:
    wait_until(lambda: len(seen.all("#maps svg.map")) == 2, PAGE_S, "both nodes have a map")
    seen.run("document.querySelector('#maps svg.map').focus()")
    assert "part 1 of 256" in seen.until("#part", "used")
    seen.browser.switch_to.active_element.send_keys("\ue014")  # Arrow right.
    seen.until("#part", "part 2 of 256")
    seen.browser.switch_to.active_element.send_keys("\ue010")  # End.
    seen.until("#part", "part 256 of 256")
    seen.run(
        "const map = document.querySelectorAll('#maps svg.map')[1], box = map.getBoundingClientRect();"
        "map.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + 1}))"
    )
    seen.until("#part", "part 129 of 256")


def test_figures_move_while_the_page_is_open(seen: Page, cache: Cache) -> None:
    before = seen.text("#summary")
    cache.put_many({f"more/{number}": b"x" for number in range(5)})
    wait_until(lambda: seen.text("#summary") != before, PAGE_S, "the number of objects changes")
    seen.until("#clients tbody", "node")


def test_hit_rate_and_latency_by_verb_follow_the_reads(seen: Page, cluster: Cluster) -> None:
    def shown() -> str:
        with cluster.connect() as reader:  # It has no leases, so it asks the master.
            reader.get_many(["block/1", "block/2", "block/3", "no such key"])
        charts = seen.text("#charts")
        return charts.split("Hit rate of reads that asked\n")[1].split("\n")[0] if "Hit rate" in charts else ""

    wait_until(lambda: shown() == "75.0%", PAGE_S, "three of four keys are found")
    row = seen.until("#verbs tr[data-key=locate]", "s ")
    _, rate, half, half_unit, most, most_unit, count = row.split()
    assert {half_unit, most_unit} <= {"µs", "ms", "s"}
    assert (float(rate) > 0, float(half) > 0, float(most) > 0, int(count) > 0) == (True,) * 4


def test_everything_is_done_with_the_keyboard(seen: Page) -> None:
    def press(key: str) -> None:
        seen.browser.switch_to.active_element.send_keys(key)

    press(Keys.TAB)
    assert seen.browser.switch_to.active_element.text == "Skip to the content"
    seen.run("document.querySelector('#failover').focus()")
    press(Keys.ENTER)
    wait_until(lambda: seen.one("#confirm").is_displayed(), PAGE_S, "it asks")
    press(Keys.TAB)
    assert seen.run("return document.querySelector('#confirm').contains(document.activeElement)")
    press(Keys.ESCAPE)
    wait_until(lambda: not seen.one("#confirm").is_displayed(), PAGE_S, "it is left")
    assert seen.run("return document.activeElement.id") == "failover"
    press(Keys.TAB)
    assert seen.run("return document.activeElement.id") == "snapshot"


def test_a_node_is_drained_from_the_page(seen: Page, cache: Cache) -> None:
    seen.one("#nodes tr[data-key=node-2] button").click()
    assert "Drain node-2?" in seen.until("#confirm", "moved to the other nodes")
    seen.one("#confirm-cancel").click()
    assert {node.mode for node in cache.nodes().nodes} == {"open"}, "nothing happens without a word"
    seen.one("#nodes tr[data-key=node-2] button").click()
    seen.one("#confirm-go").click()
    seen.until("#confirm-answer", "node-2 is draining")
    seen.one("#confirm-cancel").click()
    seen.until("#nodes tr[data-key=node-2]", "empty, can be stopped")
    assert cache.exists_many([f"block/{number}" for number in range(KEYS)]) == [True] * KEYS
    seen.until("#events", "node drained")
    seen.one("#nodes tr[data-key=node-2] button").click()
    seen.one("#confirm-go").click()
    seen.until("#confirm-answer", "node-2 is open")
    seen.one("#confirm-cancel").click()


def test_a_snapshot_is_written_from_the_page(seen: Page) -> None:
    seen.one("#snapshot").click()
    seen.until("#confirm", "catalogue")
    seen.one("#confirm-go").click()
    seen.until("#confirm-answer", "snapshot")
    seen.one("#confirm-cancel").click()
    seen.until("#events", "snapshot")


def test_nobody_is_kept_out(seen: Page) -> None:
    """Contrast in light and dark, names of everything that can be operated, headings, tables: by axe-core."""
    wait_until(lambda: len(seen.all("#maps svg.map")) == 2, PAGE_S, "both nodes have a map")
    seen.until("#clients tbody", "node")
    assert seen.serious() == []
    seen.one("#failover").click()
    seen.prefer("dark")
    assert seen.run("return getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 26)"
    assert seen.serious("#confirm") == []
    seen.one("#confirm-cancel").click()
    assert seen.serious("html", "color-contrast") == []
    seen.prefer("light")
    assert seen.run("return getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 248)"


def test_a_narrow_screen_needs_no_scrolling_sideways(seen: Page) -> None:
    seen.resize(360)
    try:
        wait_until(lambda: len(seen.all("#maps svg.map")) == 2, PAGE_S, "both nodes have a map")
        assert seen.run("return document.documentElement.scrollWidth") <= 360
    finally:
        seen.resize(1280)


def test_the_primary_hands_over_from_the_page(seen: Page, cluster: Cluster) -> None:
    before = cluster.primary()
    cluster.standby()
    wait_until(lambda: "yes" in seen.text("#masters tbody"), PAGE_S, "a standby is known")
    seen.one("#failover").click()
    seen.until("#confirm", "a standby that has caught up takes over")
    seen.one("#confirm-go").click()
    seen.until("#confirm-answer", "hands over")
    seen.one("#confirm-cancel").click()
    assert cluster.primary(but=before) is not before
    seen.until("#summary", "a standby")
    link = seen.one("#masters tbody a").get_attribute("href")
    assert link == f"http://{cluster.primary().http}/", "it says where the primary is"
    seen.open(cluster.primary().http)
    assert f"({before.folder.name})" in seen.until("#events", "node drained"), (
        "what the earlier primary noted, and who it was"
    )


def test_evictions_are_shown_by_reason_and_in_the_events(seen: Page, cache: Cache) -> None:
    cache.put_many({f"full/{number}": bytes(1 << 20) for number in range(100)})
    wait_until(lambda: seen.all("#evictions tbody tr"), PAGE_S, "reasons are shown")

    def evicted() -> int:
        return sum(int(row.text.split()[2].replace(",", "")) for row in seen.all("#evictions tbody tr"))

    wait_until(lambda: evicted() > 0, PAGE_S, "objects are evicted")
    seen.until("#events", "evictions")


def test_a_standby_s_page_sees_the_primary_s_death_and_becomes_the_primary_s(page: Page, cluster: Cluster) -> None:
    """kill -9, while the page is open."""
    primary, standby = cluster.primary(), cluster.standby()
    epoch = primary.status()["epoch"]
    page.open(standby.http)
    page.faults()
    page.until("#summary", "a standby")
    page.until("#masters tbody", "none")  # Its lag.
    assert len(page.all("#maps svg.map")) == 2 or page.until("#part", "Point at")
    with primary.channel() as channel:
        call(channel, ChangeSettings({"lease_ttl_ms": 6_000}))
    primary.kill()
    page.until("#summary", "this is its page")
    assert int(page.text("#summary").split("epoch ")[1].split(";")[0]) > epoch
    page.until("#events", "ms after it won the term")
    page.until("#events", f"evictions\n{primary.folder.name}: ")
    page.until("#events", "setting changed")
    wait_until(lambda: len(page.all("#nodes tbody tr")) == 2, PAGE_S, "the nodes are its followers")
    assert page.faults() == [], "its own master answered all the while"


def test_the_page_of_a_dead_master_says_so_and_is_live_again_with_it(page: Page, cluster: Cluster) -> None:
    cluster.heal()
    standby = cluster.standby()
    page.open(standby.http)
    page.until("#masters tbody", "primary")
    standby.kill()
    page.until("#link", "does not answer")
    standby.start()
    standby.wait_until_ready()
    page.until("#link", "live")

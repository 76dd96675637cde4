"""`make pictures`: the dashboard of a real cluster under load, light and dark, for the README and the guide."""

from __future__ import annotations

import io
import tempfile
import threading
from pathlib import Path

from PIL import Image

from tests.dashboard.browser.chromium import Page, chromium
from tests.failover.cluster import Cluster
from tests.waiting import wait_until

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
SIZE = (1280, 1420)
SECONDS = 40.0
COLOURS = 64


def work(cluster: Cluster, ends: threading.Event) -> None:
    """Puts and gets, more and fewer of them in turn."""
    number = 0
    with cluster.connect() as cache:
        cache.put("weights", bytes(9 << 20), hard_pin=True)
        cache.put_many({f"prompt/{one}": bytes(200_000) for one in range(30)}, soft_pin=True)
        while not ends.wait(0.02 + 0.02 * (number // 200 % 3)):
            cache.put_many({f"block/{number}/{layer}": bytes(60_000) for layer in range(4)})
            cache.get_many([f"block/{max(0, number - back)}/0" for back in range(3)])
            number += 1


def take(page: Page, scheme: str) -> None:
    page.prefer(scheme)
    drawn = Image.open(io.BytesIO(page.browser.get_screenshot_as_png())).convert("RGB")
    drawn.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / f"dashboard-{scheme}.png", optimize=True)


def main() -> None:
    ends = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        place = f"sqlite://{folder}/coordination.db?cluster=demo"
        with Cluster(Path(folder), place, nodes=2, size="64MiB") as cluster, chromium(Path(folder, "browser")) as page:
            cluster.standby()
            working = threading.Thread(target=work, args=(cluster, ends))
            working.start()
            try:
                page.resize(*SIZE)
                page.open(cluster.primary().http)
                waited = threading.Event()
                waited.wait(SECONDS)
                wait_until(lambda: len(page.all("#maps svg.map")) == 2, 60, "both nodes have a map")
                for scheme in ("light", "dark"):
                    take(page, scheme)
            finally:
                ends.set()
                working.join(60)


if __name__ == "__main__":
    main()

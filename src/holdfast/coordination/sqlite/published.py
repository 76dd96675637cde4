"""Published values in an SQLite file, for watchers: a list of names in the order of publication.

Numbers of the list only grow, and the newest row always stays, so that none is given twice; a watcher that fell behind
the kept part of the list reads everything again.
"""

from __future__ import annotations

import sqlite3

KEPT_NEWS = 1_024
NEWS_SCHEMA = """
CREATE TABLE IF NOT EXISTS "news {cluster}" (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);
"""


def note_published(connection: sqlite3.Connection, cluster: str, name: str) -> None:
    """Add a name to the list, within the transaction that publishes it."""
    number = connection.execute(f'INSERT INTO "news {cluster}" (name) VALUES (?)', (name,)).lastrowid
    assert number is not None, "a row was inserted"
    connection.execute(f'DELETE FROM "news {cluster}" WHERE number <= ?', (number - KEPT_NEWS,))


def names_after(connection: sqlite3.Connection, cluster: str, prefix: str, seen: int) -> tuple[list[str] | None, int]:
    """Names under the prefix that were published after that number, None for all; and the newest number."""
    bounds = connection.execute(f'SELECT coalesce(min(number), 0), coalesce(max(number), 0) FROM "news {cluster}"')
    first, last = bounds.fetchone()
    if seen == 0 or seen < first - 1:
        return None, last
    if seen == last:
        return [], last
    rows = connection.execute(
        f'SELECT DISTINCT name FROM "news {cluster}" WHERE number > ? AND substr(name, 1, ?) = ? ORDER BY name',
        (seen, len(prefix), prefix),
    )
    return [name for (name,) in rows.fetchall()], last

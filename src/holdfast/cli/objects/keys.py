"""Verbs about keys: `exists`, `ls`, `rm`, `stat`, `touch`, `pin`, `unpin`, `explain`."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

from holdfast.cli import connection
from holdfast.cli.connection import afterwards
from holdfast.cli.declared import Flag, Misuse, Operand
from holdfast.cli.exit_codes import NOT_FOUND, OK, Interrupted
from holdfast.cli.output import Listing, Output, counted, human_bytes, human_ms, plain
from holdfast.environment.client_settings import ClientSettings
from holdfast.errors import HoldfastError, ObjectNotFound

if TYPE_CHECKING:
    from holdfast.client.cache import Cache
    from holdfast.messages.requests import ObjectStat

PAGE = 4096
MOST_NAMED = 5
"""Keys that are named in a sentence."""
LONG_HEADINGS = ("SIZE", "LEASE", "PIN", "NODES", "KEY")
WILD = re.compile(r"[*?[]")

Keys: TypeAlias = Annotated[list[str], Operand("KEY...", "Keys to ask about.", "keys")]


def exists(settings: ClientSettings, out: Output, keys: Keys) -> int:
    """Say which keys are stored. Exit code 0: all of them; 4: some are not."""
    with connection.open_cache(settings) as cache:
        found = cache.exists_many(keys)
    if out.as_json:
        out.data(dict(zip(keys, found, strict=True)))
    else:
        for key, there in zip(keys, found, strict=True):
            out.line(f"{'yes' if there else 'no '}  {key}")
    return OK if all(found) else NOT_FOUND


def ls(
    settings: ClientSettings,
    out: Output,
    prefix: Annotated[
        str, Operand("[PREFIX]", "List keys that begin so; or that match, where it has *, ? or [...].", "keys")
    ] = "",
    long: Annotated[bool, Flag("Size, lease, pin and copies too.", ("--long", "-l"))] = False,
) -> None:
    """List keys, in no order. JSON is one object a line, because there may be millions."""
    with connection.open_cache(settings) as cache:
        found = matching(cache, prefix)
        listing = Listing(LONG_HEADINGS, right=("SIZE", "LEASE"))
        while page := list(itertools.islice(found, PAGE)):
            if long:
                # Those that have left since they were listed are left out.
                stats = [stat for stat in cache.stat_many(page) if stat is not None]
                out.data_lines(stats) if out.as_json else listing.show([_long_row(stat) for stat in stats])
            elif out.as_json:
                out.data_lines({"key": key} for key in page)
            else:
                out.lines(page)


def matching(cache: Cache, pattern: str) -> Iterator[str]:
    """The keys that begin so; or that match it whole, where it has wildcards. These match slashes too."""
    wildcard = WILD.search(pattern)
    if wildcard is None:
        return iter(cache.keys(pattern))
    matches = re.compile(fnmatch.translate(pattern)).match
    return (key for key in cache.keys(pattern[: wildcard.start()]) if matches(key))


def rm(
    settings: ClientSettings,
    out: Output,
    keys: Annotated[list[str] | None, Operand("[KEY...]", "Keys to remove.", "keys")] = None,
    force: Annotated[bool, Flag("Also what is leased or pinned.", ("--force", "-f"))] = False,
    matching: Annotated[str | None, Flag("Remove every key that this RE2 matches.", metavar="REGEX")] = None,
    everything: Annotated[bool, Flag("Remove every object; asks for --yes.", ("--all",))] = False,
    yes: Annotated[bool, Flag("Yes, all of them.", ("--yes",))] = False,
) -> int:
    """Remove objects. An object that is being read is kept, unless --force is given."""
    if sum((bool(keys), matching is not None, everything)) != 1:
        raise Misuse("Invalid value for KEY: name keys, or --matching REGEX, or --all: one of the three")
    if everything and not yes:
        raise Misuse("Invalid value for --all: this removes every object of the cluster; say --yes too")
    missing: list[str] = []
    with connection.open_cache(settings) as cache:
        if keys:
            removed, missing = _remove_each(settings, cache, keys, force)
        else:
            removed = _remove_matching(settings, cache, matching, force)
    if out.as_json:
        out.data({"removed": removed, "missing": missing})
    else:
        for key in missing:
            out.note(f"holdfast: {key}: no object is stored under this key")
        out.note(f"removed {counted(removed, 'object')}")
    return NOT_FOUND if missing else OK


def stat(settings: ClientSettings, out: Output, keys: Keys) -> int:
    """Show size, checksum, lease, pins and where the copies are. Exit code 4 if a key is not stored."""
    with connection.open_cache(settings) as cache:
        stats = {key: _stat_or_none(cache, key) for key in keys}
    if out.as_json:
        out.data([plain(one) if one is not None else {"key": key, "missing": True} for key, one in stats.items()])
    else:
        for key, one in stats.items():
            if one is None:
                out.note(f"holdfast: {key}: no object is stored under this key")
            else:
                out.facts(_facts(one))
    return OK if all(stats.values()) else NOT_FOUND


def touch(settings: ClientSettings, out: Output, keys: Keys) -> int:
    """Mark objects as used just now, so that others are evicted before them. Exit code 4 if a key is not stored."""
    with connection.open_cache(settings) as cache:
        found = cache.use_many(keys)
    return _tell(out, "touched", keys, found)


def pin(
    settings: ClientSettings,
    out: Output,
    keys: Annotated[list[str], Operand("KEY...", "Keys of the objects to pin.", "keys")],
    soft: Annotated[
        bool, Flag("Evict them last, as long as they are used now and then; the default.", ("--soft",))
    ] = False,
    hard: Annotated[bool, Flag("Never evict them; remove them with --force only.", ("--hard",))] = False,
) -> int:
    """Pin stored objects, in the place of the pins that they have. Exit code 4 if a key is not stored."""
    if soft and hard:
        raise Misuse("Invalid value for --hard: a pin is soft or hard, not both")
    with connection.open_cache(settings) as cache:
        found = cache.pin(keys, hard=hard)
    return _tell(out, "pinned", keys, found)


def unpin(
    settings: ClientSettings,
    out: Output,
    keys: Annotated[list[str], Operand("KEY...", "Keys of the objects to unpin.", "keys")],
) -> int:
    """Take the pins of objects away, soft and hard: they are evicted as others are. Exit code 4 if a key is not
    stored."""
    with connection.open_cache(settings) as cache:
        found = cache.unpin(keys)
    return _tell(out, "unpinned", keys, found)


def _tell(out: Output, what: str, keys: list[str], found: list[bool]) -> int:
    """Of which keys it was done. The exit code."""
    if out.as_json:
        out.data(dict(zip(keys, found, strict=True)))
    else:
        for key, there in zip(keys, found, strict=True):
            if not there:
                out.note(f"holdfast: {key}: no object is stored under this key")
        out.note(f"{what} {counted(sum(found), 'object')}")
    return OK if all(found) else NOT_FOUND


def explain(
    settings: ClientSettings,
    out: Output,
    key: Annotated[str, Operand("KEY", "Name of the object.", "keys")],
) -> int:
    """Say why an object is kept, or what removed it while that is remembered. Exit code 4 if it is not stored."""
    with connection.open_cache(settings) as cache:
        told = cache.explain(key)
    if out.as_json:
        out.data({"key": key, "stored": told.stat is not None, "reasons": told.reasons, "stat": told.stat})
    else:
        if told.stat is not None:
            out.facts(_facts(told.stat))
        for reason in told.reasons:
            out.line(f"- {reason}")
    return OK if told.stat is not None else NOT_FOUND


def _remove_each(settings: ClientSettings, cache: Cache, keys: list[str], force: bool) -> tuple[int, list[str]]:
    """How many were removed, and the keys that nothing was stored under. Where it ends early, the error says how far it
    came."""
    removed, missing = 0, []
    for number, key in enumerate(keys):
        try:
            count = cache.remove(key, force=force)
        except KeyboardInterrupt:
            raise Interrupted(_of_these_left(settings, removed, keys[number:])) from None
        except HoldfastError as error:
            told = str(error).replace("use force=True", "use --force")
            if len(keys) > 1:
                left = counted(len(keys) - number - 1, "key")
                told += f"; before it {counted(removed, 'object')} removed, after it {left} not tried"
            error.args = (told,)
            raise
        removed += count
        if not count:
            missing.append(key)
    return removed, missing


def _of_these_left(settings: ClientSettings, removed: int, keys: list[str]) -> str:
    """What is true after Ctrl-C: the first of these keys was being removed, the others were not tried."""
    try:
        with connection.open_cache(afterwards(settings)) as cache:
            stored = [key for key, there in zip(keys, cache.exists_many(keys), strict=True) if there]
    except HoldfastError:
        others = f", {_named(keys[1:])} not tried" if keys[1:] else ""
        return f"interrupted; {counted(removed, 'object')} removed, whether {keys[0]} was is not known{others}"
    removed += keys[0] not in stored
    return f"interrupted; {counted(removed, 'object')} removed, still stored: {_named(stored) if stored else 'none'}"


def _named(keys: list[str]) -> str:
    more = len(keys) - MOST_NAMED
    return ", ".join(keys[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _remove_matching(settings: ClientSettings, cache: Cache, pattern: str | None, force: bool) -> int:
    """How many were removed of those that match; without a pattern, of everything."""
    before = cache.status().objects
    try:
        return cache.remove_all(force=force) if pattern is None else cache.remove_matching(pattern, force=force)
    except KeyboardInterrupt:
        raise Interrupted(_of_all_left(settings, before)) from None


def _of_all_left(settings: ClientSettings, before: int) -> str:
    """What is true after Ctrl-C. The master removes in steps, for each of which it is asked."""
    text = f"interrupted; nothing more is removed: the cluster held {counted(before, 'object')}"
    try:
        with connection.open_cache(afterwards(settings)) as cache:
            return f"{text} before, and holds {cache.status().objects:,} now"
    except HoldfastError:
        return f"{text} before, and how many now is not known"


def _stat_or_none(cache: Cache, key: str) -> ObjectStat | None:
    try:
        return cache.stat(key)
    except ObjectNotFound:
        # It may have left since it was listed; the caller says so where that matters.
        return None


def _long_row(stat: ObjectStat) -> tuple[str, ...]:
    return (
        human_bytes(stat.size_bytes),
        human_ms(stat.lease_left_ms) if stat.lease_left_ms > 0 else "-",
        _pin(stat),
        ",".join(replica.node for replica in stat.replicas),
        stat.key,
    )


def _pin(stat: ObjectStat) -> str:
    if stat.hard_pin:
        return "hard"
    return "soft" if stat.soft_pin_left_ms > 0 else "-"


def _facts(stat: ObjectStat) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("key", stat.key),
        ("id", f"{stat.id:016x}"),
        ("size", f"{human_bytes(stat.size_bytes)} ({stat.size_bytes:,} bytes)"),
        ("checksum", f"{stat.checksum:016x}" if stat.checksum else "none"),
        ("lease", f"{human_ms(stat.lease_left_ms)} left" if stat.lease_left_ms > 0 else "none"),
        ("last used", f"{human_ms(stat.unused_ms)} ago"),
        ("pin", _pin(stat) if stat.hard_pin or stat.soft_pin_left_ms <= 0 else _soft_pin(stat)),
    ]
    facts += [
        ("replica", f"{replica.kind} on {replica.node}, segment {replica.segment}, offset {replica.offset:,}")
        for replica in stat.replicas
    ]
    return facts


def _soft_pin(stat: ObjectStat) -> str:
    return f"soft, {human_ms(stat.soft_pin_left_ms)} left"

"""`drain`, and what `nodes` can change: cordon, uncordon, resize, the speed of copies, the end of a client's writes.

A request is in the log once it is answered: a failover or a restart of this command does not undo it. `drain` then only
watches; if it is ended early, the draining goes on.
"""

from __future__ import annotations

from threading import Event
from typing import Annotated

import typer

from holdfast.cli import completion, connection
from holdfast.cli.exit_codes import LATER, OK, Interrupted
from holdfast.cli.options import takes
from holdfast.cli.output import Output, counted, human_bytes, plain
from holdfast.client.cache import Cache
from holdfast.errors import BadValue, UnknownNode
from holdfast.instant import now_seconds
from holdfast.messages.requests import ChangeCopying, ChangeMode, NodeInfo, ResizeNode, RevokeWrites
from holdfast.settings import BadSetting, ClientSettings, parse_size

LOOK_SECONDS = 0.5
WRITTEN = {
    "cordon": "NODE",
    "uncordon": "NODE",
    "resize": "NODE SIZE",
    "copy-rate": "SIZE",
    "revoke-client": "NUMBER",
}
"""What follows each action of `holdfast nodes`."""


@takes(ClientSettings)
def drain(
    settings: ClientSettings,
    out: Output,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name.", autocompletion=completion.nodes)],
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop draining: the node takes new objects again.")] = False,
    cordon_only: Annotated[
        bool, typer.Option("--cordon-only", help="Place nothing new there, and leave what is there.")
    ] = False,
    evict: Annotated[
        bool, typer.Option("--evict", help="Go on where the other nodes have no room for all: objects are evicted.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Watch until the node is empty.")] = True,
) -> int:
    """Move everything away from a node, so that it can be stopped without loss. Reads go on meanwhile. Refused, with
    the figures, where the other nodes have no room for it; `--evict` goes on all the same."""
    if cancel and cordon_only:
        raise BadSetting("--cancel and --cordon-only contradict each other; give one of them")
    mode = "open" if cancel else "cordoned" if cordon_only else "draining"
    with connection.open_cache(settings) as cache:
        cache.operate(ChangeMode(node, mode, evict))
        if mode != "draining" or not wait:
            return _show(out, _find(cache, node))
        try:
            return _watch(cache, node, out)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; {node} goes on draining: holdfast drain {node} watches again, with --cancel it ends that"
            ) from None


def _watch(cache: Cache, node: str, out: Output) -> int:
    waiting = Event()
    said = ""
    stuck_since: float | None = None
    while True:
        found = _find(cache, node)
        if found.mode != "draining":
            out.note(f"{node} is {found.mode}: somebody ended the draining")
            return LATER
        if not found.bytes_left and not found.objects_left:
            return _show(out, found)
        text = _so_far(found)
        if found.waits_for:
            stuck_since = stuck_since if stuck_since is not None else now_seconds()
            if now_seconds() - stuck_since > 2 * cache.timeout:
                out.note(f"{text}: {found.waits_for}")
                _show(out, found)
                return LATER
            text += f": {found.waits_for}"
        else:
            stuck_since = None
        if text != said and not out.as_json:
            out.note(said := text)
        waiting.wait(LOOK_SECONDS)


def _find(cache: Cache, name: str) -> NodeInfo:
    for node in cache.nodes().nodes:
        if node.name == name:
            return node
    raise UnknownNode(f"no node is called {name!r} any more")


def _show(out: Output, node: NodeInfo) -> int:
    if out.as_json:
        out.data(plain(node))
    elif node.mode == "draining":
        ended = not node.bytes_left and not node.objects_left
        can = "is empty and can be stopped" if ended else "is draining"
        out.line(f"{node.name} {can}: {_so_far(node)}; holdfast drain {node.name} --cancel opens it again")
    else:
        used = f"{human_bytes(node.used_bytes)} of {human_bytes(node.capacity_bytes)} used"
        out.line(f"{node.name} is {node.mode}, {used}")
    return OK


def _so_far(node: NodeInfo) -> str:
    """The figures of a drain: what it has done, and what is left of it."""
    return (
        f"{counted(node.moved_objects, 'object')} ({human_bytes(node.moved_bytes)}) moved, "
        f"{node.evicted_objects:,} ({human_bytes(node.evicted_bytes)}) evicted, "
        f"{node.objects_left:,} ({human_bytes(node.bytes_left)}) left"
    )


def act(settings: ClientSettings, out: Output, action: str, name: str, value: str, force: bool) -> int:
    """`holdfast nodes ACTION NAME [VALUE]`"""
    if action in WRITTEN and (not name or (action == "resize" and not value)):
        raise BadSetting(f"write: holdfast nodes {action} {WRITTEN[action]}; nothing was changed")
    with connection.open_cache(settings) as cache:
        if action in ("cordon", "uncordon"):
            cache.operate(ChangeMode(name, "cordoned" if action == "cordon" else "open"))
        elif action == "resize":
            cache.operate(ResizeNode(name, _size(value), force))
        elif action == "copy-rate":
            limit = _size(name)
            cache.operate(ChangeCopying(limit))
            return _done(out, f"nodes copy {human_bytes(limit)}/s at most" if limit else "nodes copy without a limit")
        elif action == "revoke-client":
            ended = cache.operate(RevokeWrites(_client(name)))
            return _done(out, f"{ended} unfinished puts of client {name} were ended; nodes take no more bytes from it")
        else:
            raise BadSetting(f"{action!r} is none of {', '.join(WRITTEN)}")
        return _show(out, _find(cache, name))


def _done(out: Output, text: str) -> int:
    if out.as_json:
        out.data({"done": text})
    else:
        out.line(text)
    return OK


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise BadSetting(str(error)) from None


def _client(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise BadValue(f"{text!r} is no client's number") from None

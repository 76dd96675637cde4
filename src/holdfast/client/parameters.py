"""Every parameter of the clients' methods, explained once, and the signatures and docstrings that `help()` shows.

A method says in a sentence or two what it does; `spelled_out` adds a line for each of its parameters from the table
here. A parameter that the table lacks is an error when the module is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.client.calls import PutKeywords, put

Method = TypeVar("Method", bound=Callable[..., Any])

PARAMETERS = {
    "buffer": "The memory: anything with contiguous bytes, as for `put`. It is not copied.",
    "cursor": "0 to begin; then the cursor of the page before.",
    "default": "The result if no object is stored under the key. Without it: ObjectNotFound.",
    "durability": "'durable': return when the log has it. 'standby': when a standby holds it, or the log; it is lost\n"
    "  only if that standby and the primary are lost together. 'memory': at once; a failover may lose it. None: as\n"
    "  the masters' setting says.",
    "errors": "A dict that receives the error of each key that is stored and cannot be read now.",
    "force": "Also remove what is being read or pinned. Needs the role of an operator.",
    "hard": "Never evict it, and remove it by force only, until it is unpinned or replaced.",
    "hard_pin": "Never evict it, and remove it by force only.",
    "items": "A dict of keys to values, or pairs of them. If a key is given twice, the first value counts.",
    "key": "The object's name: a str of 1 to 1,024 bytes in UTF-8.",
    "keys": "The objects' names, each a str. Not one str.",
    "outcomes": "Return a list with the outcome of each item, in the order given, in the place of a number.",
    "prefer": "The name of a node or segment to ask for memory first, or several names.",
    "prefix": "Only keys that begin with this. Empty: all keys.",
    "regex": "An RE2 expression, searched for anywhere in the key.",
    "replicas": "The number of copies, each on another node.",
    "request": "A request of `holdfast.messages` that names the operation.",
    "reserved": "Reservations of this client.",
    "size": "The object's size in bytes.",
    "sizes": "A dict of keys to sizes in bytes, or pairs of them.",
    "soft_pin": "Evict it last, as long as it is used now and then.",
    "start": "The place of the first byte in the object.",
    "target": "A writable buffer; or a list of them, filled one after the other; or a list of `Part`s.",
    "targets": "A target for each key, in the same order, each as for `get_into`.",
    "timeout": "Seconds that this call may take, in the place of the client's own `timeout`.",
    "touch": "Also lease it and mark it as used, as a read does.",
    "upsert": "Replace the object if the key is taken.",
    "value": "Anything with contiguous memory (bytes, bytearray, memoryview, a NumPy array, a CPU tensor), or a list\n"
    "  of these, whose bytes are stored one after the other. Encode text first: `text.encode()`.",
    "verify": "Compare with the checksums: True, False, or None for the client's own setting.",
    "which": "The object's name, a str; or several names.",
}


def spelled_out(method: Method, declared: Callable[..., Any] | None = None) -> Method:
    """Have `help()` and `inspect` show a method as its call declares it: without the state and the deadline, with the
    type of the result for that of the operation, with the keywords that `**keywords` stands for, and with a line for
    each parameter."""
    signature = inspect.signature(method if declared is None else declared)
    first, *given = signature.parameters.values()
    returns = signature.return_annotation
    if declared is not None:
        method.__name__, method.__doc__ = declared.__name__, declared.__doc__
        first, given = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), given[1:]
        returns = returns.removeprefix("Operation[").removesuffix("]")
    known = inspect.signature(put).parameters
    parameters = [first]
    for each in given:
        named = PutKeywords.__annotations__ if each.kind is inspect.Parameter.VAR_KEYWORD else ()
        parameters += [known[name] for name in known if name in named] if named else [each]
    method.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    lines = [f"- `{each.name}`: {PARAMETERS[each.name]}" for each in parameters[1:]]
    summary = inspect.cleandoc(method.__doc__ or "")
    method.__doc__ = "\n".join([summary, "", *lines]) if lines else summary
    return method

"""The JSON that commands print, as JSON Schema (2020-12): made from the messages whose fields they print.

`tests/cli/test_json.py` holds the real output of each command to it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import inspect as types

from holdfast.cli.output import MOST_EXACT
from holdfast.messages.of_masters import ClientInfo
from holdfast.messages.requests import NodeInfo, ObjectStat, Status

PAGE = """# JSON of the command line

`--json` prints one document, `ls` one a line. Fields are only ever added: ignore those that you do not know.
A number beyond 2^53 (an id, a checksum) is a text with its digits, because many readers keep numbers as floating point
and would round it. Sizes are in bytes, and times in the unit that the name ends with.

A failure prints the document `error` to stdout, and nothing to stderr; the exit code is as without `--json`
([errors](errors.md)). Remarks for people, such as a variable that nothing reads, go to stderr.

Below is the schema (JSON Schema 2020-12) of what each command prints. `whole number` is in each of them:
"""
WHOLE_NUMBER = {
    "anyOf": [
        {"type": "integer", "minimum": -MOST_EXACT, "maximum": MOST_EXACT},
        {"type": "string", "pattern": "^-?[0-9]{16,20}$"},
    ]
}
Schema = dict[str, Any]
_REF = {"$ref": "#/$defs/whole number"}
_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}


def of_type(kind: types.Type) -> Schema:
    match kind:
        case types.IntType():
            return _REF
        case types.FloatType():
            return {"type": "number"}
        case types.BoolType():
            return _FLAG
        case types.StrType() | types.EnumType() | types.LiteralType():
            return _TEXT
        case types.NoneType():
            return {"type": "null"}
        case types.ListType() | types.VarTupleType():
            return {"type": "array", "items": of_type(kind.item_type)}
        case types.DictType():
            return {"type": "object", "additionalProperties": of_type(kind.value_type)}
        case types.UnionType():
            return {"anyOf": [of_type(one) for one in kind.types]}
        case types.StructType():
            return shown({field.name: of_type(field.type) for field in kind.fields})
        case types.Metadata():
            return of_type(kind.type)
    raise TypeError(f"{kind} has no schema here yet")


def of_message(message: type[msgspec.Struct]) -> Schema:
    return of_type(types.type_info(message))


def shown(fields: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object that has these fields, maybe those, and maybe more in a later release."""
    return {"type": "object", "properties": {**(optional or {}), **fields}, "required": list(fields)}


def _documents() -> dict[str, Schema]:
    stat, status = of_message(ObjectStat), of_message(Status)
    by_key = {"type": "object", "additionalProperties": _FLAG}
    texts = {"type": "array", "items": _TEXT}
    maybe_number, maybe_flag = {"anyOf": [_REF, {"type": "null"}]}, {"type": ["boolean", "null"]}
    master = shown(
        {"address": _TEXT, "reachable": _FLAG, "fault": _TEXT},
        {**status["properties"], "lag": maybe_number, "digest_equal": maybe_flag},
    )
    return {
        "put": shown({"key": _TEXT, "stored": _FLAG, "size_bytes": _REF}),
        "get": shown({"key": _TEXT, "size_bytes": _REF}, {"base64": _TEXT, "file": _TEXT}),
        "exists": by_key,
        "ls": shown({"key": _TEXT}),
        "ls --long": stat,
        "rm": shown({"removed": _REF, "missing": texts}),
        "stat": {"type": "array", "items": {"anyOf": [stat, shown({"key": _TEXT, "missing": {"const": True}})]}},
        "touch": by_key,
        "pin": by_key,
        "unpin": by_key,
        "explain": shown(
            {"key": _TEXT, "stored": _FLAG, "reasons": texts, "stat": {"anyOf": [stat, {"type": "null"}]}}
        ),
        "status": shown(
            {"primary": {"anyOf": [status, {"type": "null"}]}, "masters": {"type": "array", "items": master}},
            status["properties"],
        ),
        "nodes": {"type": "array", "items": of_message(NodeInfo)},
        "clients": shown({"clients": {"type": "array", "items": of_message(ClientInfo)}, "total": _REF}),
        "snapshot": shown(
            {"master": _TEXT, "address": _TEXT, "role": _TEXT, "batch": _REF, "size_bytes": maybe_number}
        ),
        "error": shown({"error": shown({"code": _TEXT, "text": _TEXT})}),
    }


DOCUMENTS = _documents()
"""By verb, with `ls --long` beside `ls`, and `error` for a failure of any verb."""


def schema(name: str) -> Schema:
    """The schema of one document, whole."""
    return {"$defs": {"whole number": WHOLE_NUMBER}, **DOCUMENTS[name]}


def page() -> str:
    parts = [PAGE, block(WHOLE_NUMBER)]
    for name, document in DOCUMENTS.items():
        parts += [f"## {name}", block(document)]
    return "\n\n".join(parts) + "\n"


def block(value: Schema) -> str:
    return f"```json\n{json.dumps(value, indent=1)}\n```"

"""Puts holdfast's store where programs import `mooncake.store`, and leaves the rest of Mooncake alone.

`install` adds a finder for exactly `mooncake.store`; `mooncake.engine` and everything else stays the real package's,
whose transfer engine SGLang and vLLM use beside the store. Where Mooncake is not installed, `mooncake` is an empty
package that has, beside `store`, the few modules of `_ALONE`.

The distribution holdfast-mooncake-hook calls it at the start of every interpreter in whose environment
HOLDFAST_AS_MOONCAKE is set.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Sequence
from types import ModuleType

_PACKAGE = "holdfast.compat.mooncake"
_STORE = "mooncake.store"
_ALONE = {
    "mooncake.async_store": f"{_PACKAGE}.async_store",
    "mooncake.mooncake_config": f"{_PACKAGE}.configuration",
    "mooncake.buffer_pool": f"{_PACKAGE}.store",
}
"""Modules that engines import beside the store; ours if the real package is missing."""


class _Loader(importlib.abc.Loader):
    """A module that has the names of another one."""

    def __init__(self, source: str) -> None:
        self._source = source

    def exec_module(self, module: ModuleType) -> None:
        source = importlib.import_module(self._source)
        names = getattr(source, "__all__", None) or [name for name in vars(source) if not name.startswith("__")]
        module.__doc__ = source.__doc__
        vars(module).update({name: getattr(source, name) for name in names})


class MooncakeFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == _STORE:
            return importlib.machinery.ModuleSpec(fullname, _Loader(f"{_PACKAGE}.store"), origin="holdfast")
        if fullname == "mooncake" and self._elsewhere(fullname, None) is None:
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = []
            return spec
        if fullname in _ALONE and self._elsewhere(fullname, path) is None:
            return importlib.machinery.ModuleSpec(fullname, _Loader(_ALONE[fullname]), origin="holdfast")
        return None

    def _elsewhere(self, fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have for this name."""
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path)) is not None:
                return spec
        return None


def install() -> None:
    """From now on `import mooncake.store` is holdfast's. Once is enough; again is harmless."""
    if any(isinstance(finder, MooncakeFinder) for finder in sys.meta_path):
        return
    if _STORE in sys.modules:
        log = logging.getLogger("holdfast.mooncake")
        log.warning("mooncake.store was imported before holdfast could take its place")
        return
    sys.meta_path.insert(0, MooncakeFinder())

"""Another user of the same machine: a child of the test that has dropped to a uid of its own."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

import pytest

NOBODY = 65534
Answer = TypeVar("Answer")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def as_other_user(act: Callable[[], Answer], directory: str = "/", uid: int = NOBODY) -> Answer:
    """What `act` returns in a child of this uid, in this directory; AssertionError with its traceback if it raises."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(directory)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            told: tuple[bool, object] = True, act()
        except BaseException:  # noqa: BLE001 - The parent raises it.
            told = False, traceback.format_exc()
        os.write(write, pickle.dumps(told))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        done, answer = pickle.loads(answers.read())
    os.waitpid(child, 0)
    assert done, answer
    return answer  # type: ignore[no-any-return]

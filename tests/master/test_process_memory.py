"""What a master takes from the system and no longer needs, it gives back."""

from __future__ import annotations

import subprocess
import sys

import pytest

FILL_AND_FREE = """
import numpy as np, sys
from benchmarks.processes import memory_of
from holdfast.master.process import give_freed_memory_back
import os
if sys.argv[1] == "gives back":
    give_freed_memory_back()
np.ones(20 << 20, np.uint8)  # The C library learns that large arrays come and go, and keeps their memory from now on.
before = memory_of(os.getpid())
arrays = [np.ones(2 << 20, np.uint8) for _ in range(60)]
last = np.ones(900 << 10, np.uint8)  # Behind them in the heap.
arrays.clear()
print((memory_of(os.getpid()) - before) >> 20)
"""


@pytest.mark.parametrize(("how", "gives_back"), [("gives back", True), ("as the C library likes", False)])
def test_memory_of_large_arrays_is_given_back_when_they_are_freed(how: str, gives_back: bool) -> None:
    run = subprocess.run([sys.executable, "-c", FILL_AND_FREE, how], capture_output=True, text=True, check=True)
    assert (int(run.stdout) < 20) == gives_back, run.stdout

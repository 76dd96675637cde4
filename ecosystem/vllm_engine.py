"""A real vLLM engine in a process of its own, for suites and benchmarks: asked by lines, answered by lines."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ecosystem.environments import ROOT, variables

PROGRAM = ROOT / "ecosystem" / "programs" / "vllm_engine.py"
MODEL = ROOT / "ecosystem" / "models" / "tiny"
START_S = 600.0
ANSWER_S = 180.0
PLAIN = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
}


class EngineEnded(AssertionError):
    """The engine's process ended, or did not answer: the text has the end of what it printed."""


class Engine:
    """Started by the constructor, waited for by `ready`, killed at the end of the block."""

    def __init__(
        self, python: Path, folder: Path, config: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        arguments = [json.dumps(config)] if config else []
        self._log = (folder / "engine.log").open("ab")
        self._log_path = folder / "engine.log"
        self.process = subprocess.Popen(
            [str(python), str(PROGRAM), str(MODEL), *arguments],
            cwd=folder,
            env=variables(**PLAIN, **(env or {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ready(self) -> float:
        """Seconds that vLLM itself took to start."""
        return float(self._next(START_S)["ready"])

    def generate(self, prompt: int) -> dict[str, Any]:
        """`tokens`, `cached` (prompt tokens that were not computed) and `seconds`."""
        return self._ask({"do": "generate", "prompt": prompt})

    def reset(self) -> None:
        """Empty the engine's own prefix cache. Blocks that are still being stored keep it from being emptied."""
        self._ask({"do": "reset"})

    def end(self) -> None:
        self._send({"do": "end"})
        self.process.wait(ANSWER_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._send(request)
        return self._next(ANSWER_S)

    def _send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise EngineEnded(f"the engine ended ({error}): {self._tail()}") from error

    def _next(self, within_s: float) -> dict[str, Any]:
        try:
            found = self._answers.get(timeout=within_s)
        except queue.Empty:
            found = None
        if found is None:
            raise EngineEnded(f"the engine did not answer: {self._tail()}")
        return found

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                self._answers.put(json.loads(line[7:]))
            else:
                self._log.write(line.encode())
                self._log.flush()
        self._answers.put(None)

    def _tail(self) -> str:
        self._log.flush()
        return self._log_path.read_text(errors="replace").strip()[-800:]


def mooncake_settings(folder: Path, address: str, lends: int = 0) -> dict[str, str]:
    """Environment of MooncakeStoreConnector: its own configuration file."""
    path = folder / "mooncake.json"
    path.write_text(
        json.dumps(
            {
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": address,
                "protocol": "tcp",
                "device_name": "",
                "mode": "embedded" if lends else "standalone-store",
                "global_segment_size": lends,
                "local_buffer_size": 64 << 20,
            }
        )
    )
    return {"MOONCAKE_CONFIG_PATH": str(path)}

"""Record the real Mooncake's answers: `python tests/compat/record_mooncake.py PYTHON [FILE]`.

PYTHON is the interpreter of an environment with mooncake-transfer-engine-non-cuda (see docs/engines/mooncake.md for the
version). Its master is started on a free port and asked the table of mooncake_cases.py, which is stored in FILE.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RECORDED = HERE / "recorded_mooncake.json"
WITHIN_S = 300.0
LISTEN_S = 30.0


def master_of(python: Path) -> Path:
    asked = "import importlib.util as u; print(u.find_spec('mooncake').submodule_search_locations[0])"
    folder = Path(subprocess.check_output([str(python), "-c", asked], text=True).strip())
    binary = folder / "mooncake_master"
    binary.chmod(binary.stat().st_mode | 0o111)
    return binary


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_it_listens(port: int) -> None:
    deadline = time.monotonic() + LISTEN_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise


def real_answers(python: Path, environment: dict[str, str] | None = None) -> dict[str, str]:
    """What the real module of this environment answers, from a master of its own."""
    port, metrics = free_port(), free_port()
    master = subprocess.Popen(
        [
            *(str(master_of(python)), "--rpc_address=127.0.0.1", f"--rpc_port={port}"),
            *("--metrics_host=127.0.0.1", f"--metrics_port={metrics}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        wait_until_it_listens(port)
        command = [str(python), str(HERE / "mooncake_cases.py"), f"127.0.0.1:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=environment, check=False)
    finally:
        master.kill()
        master.wait()
    return answers_in(done.stdout, done.stderr)


def answers_in(said: str, complaints: str = "") -> dict[str, str]:
    for line in said.splitlines():
        if line.startswith("ANSWERS "):
            found: dict[str, str] = json.loads(line.removeprefix("ANSWERS "))
            return found
    raise SystemExit(f"no answers were given:\n{said[-2000:]}\n{complaints[-2000:]}")


def main() -> int:
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else RECORDED
    found = real_answers(Path(sys.argv[1]), {**os.environ, "GLOG_minloglevel": "3"})
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(found)} answers in {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Two hosts that send each other datagrams, a cut in one direction, and what then arrives: printed as a line each."""

from __future__ import annotations

import subprocess
import sys

from chaos.namespaces import Network, inside, prepare, run_inside

LISTEN = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(("0.0.0.0", 9))
    print("bound", flush=True)
    while (got := s.recv(100)) != b"end":
        print(got.decode(), flush=True)
"""
SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.sendto(sys.argv[2].encode(), (sys.argv[1], 9))
"""


def main() -> None:
    prepare()
    network = Network()
    for host in ("one", "two"):
        network.add(host)
    listeners = {host: listen(network, host) for host in ("one", "two")}

    def send(sender: str, receiver: str, text: str) -> None:
        command = [*network.within(sender), sys.executable, "-c", SEND, network.addresses[receiver], text]
        subprocess.run(command, check=True)

    send("one", "two", "whole")
    network.cut("one", "two")
    send("one", "two", "cut off")
    send("two", "one", "the other way")
    network.mend("one", "two")
    for sender, receiver in (("one", "two"), ("two", "one")):
        send(sender, receiver, "mended")
        send(sender, receiver, "end")
    for host, listener in listeners.items():
        assert listener.stdout is not None
        print(host, "heard", listener.stdout.read().split("\n")[:-1])
        listener.wait()


def listen(network: Network, host: str) -> subprocess.Popen[str]:
    command = [*network.within(host), sys.executable, "-c", LISTEN]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "bound\n"
    return started


if __name__ == "__main__":
    if not inside():
        sys.exit(run_inside())
    main()

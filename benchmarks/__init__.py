"""How fast holdfast is, always beside what the machine itself can do in the same minute.

    python -m benchmarks [--only NAME] [--quick] [--json]

Each figure is the median over rounds, and each baseline (a socket echo, a memory copy, raw loopback TCP) is
measured in the same rounds, turn by turn, because the speed of a shared machine changes by the minute while the
ratio of two neighbours does not. Masters, nodes and baselines are processes of their own, and so is every client.
"""

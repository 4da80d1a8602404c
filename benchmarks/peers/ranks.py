"""Start a script once for each rank, with the environment that `torchrun` would set: `ranks.py SCRIPT ARGUMENT...`.

All ranks of a peer thereby belong to one session, as all workers of Cordée do: where the kernel shares a busy machine
between sessions (autogroups), ranks that `torchrun` starts would each get as much of it as a whole run of Cordée.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

WORKERS = 2


def environments() -> list[dict[str, str]]:
    """That of each rank: DDP, Accelerate and Lightning read it alike."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": WORKERS, "LOCAL_WORLD_SIZE": WORKERS, "NODE_RANK": 0}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        {key: str(value) for key, value in {**world, "RANK": rank, "LOCAL_RANK": rank}.items()}
        for rank in range(WORKERS)
    ]


def main() -> None:
    """Wait until all have ended well, or the first one has not."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command = [sys.executable, *sys.argv[1:]]
    ranks = [subprocess.Popen(command, env={**os.environ, **environment}) for environment in environments()]
    try:
        for _ in ranks:
            _, status = os.wait()
            if status != 0:
                sys.exit(f"a rank ended with {os.waitstatus_to_exitcode(status)}")
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    main()

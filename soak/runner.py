"""The local runner as a process of its own: started, killed, started again at one port."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
END_WITHIN_S = 20


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def living(process_group: int) -> dict[int, str]:
    """The processes of a group that have not ended; the dead may wait for their new parent."""
    ps = subprocess.run(
        ["ps", "-A", "-o", "pgid=,pid=,stat=,comm="], capture_output=True, check=True
    )
    rows = [line.split(maxsplit=3) for line in ps.stdout.decode().splitlines()]
    return {int(r[1]): r[3] for r in rows if r[0] == str(process_group) and r[2][0] != "Z"}


class Runner:
    """`npm start` over a folder, at one port for all its lives; it ends when its parent does."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.port = free_port()
        self.persist = folder / "state"
        self.log = folder / "log"
        self.groups: list[int] = []
        self._settings = {
            "PORT": str(self.port),
            "FENCEPOST_PERSIST": str(self.persist),
            **settings,
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [PROJECT / "node_modules/.bin/node", PROJECT / "local/start.mjs"],
                cwd=PROJECT,
                env={**os.environ, **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.groups.append(self.process.pid)

    def end(self, how: signal.Signals) -> None:
        """The signal goes to Node and workerd alike."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        self.process.wait(timeout=END_WITHIN_S)
        for _ in range(100):
            if not living(self.process.pid):
                return
            time.sleep(0.05)
        raise AssertionError(f"{living(self.process.pid)} outlived {how.name}")

    def commits(self) -> int | None:
        """The change counter in the index of the write-ahead log: it moves with each commit."""
        for index in self.persist.glob("v3/d1/*/*.sqlite-shm"):
            if index.name != "metadata.sqlite-shm":
                with index.open("rb") as opened:
                    header = opened.read(12)
                return int(struct.unpack("=8xI", header)[0]) if len(header) == 12 else None
        return None

    def workerd(self) -> int | None:
        """The process id of the Worker's runtime, once there is one."""
        found = [pid for pid, name in living(self.process.pid).items() if name == "workerd"]
        return found[0] if found else None

    def database(self) -> Path | None:
        """The file of the one D1 database, once there is one."""
        files = self.persist.glob("v3/d1/*/*.sqlite")
        return next((file for file in files if file.name != "metadata.sqlite"), None)

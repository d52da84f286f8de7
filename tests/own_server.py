"""A server for one test, which may die."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from mosaic_queues.connection import urls_of
from mosaic_queues.server import server_binary


class OwnServer:
    """A server that is killed, frozen, and started again; it keeps what `SAVE` has written.

    Args:
        directory: it is made; its path has to be short, as that of the server's socket.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory, self.urls = directory, urls_of(f"unix://{directory}/s?db=0")
        self.start()

    def start(self) -> None:
        """Starts it, at first or again, and waits until it serves."""
        words = ["--port", "0", "--unixsocket", "s", "--save", "", "--appendonly", "no"]
        command = [server_binary(), *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=self._directory, text=True)
        assert self._process.stdout is not None
        next(line for line in self._process.stdout if "eady to accept connections" in line)

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it at once."""
        with self._process:
            self._process.kill()

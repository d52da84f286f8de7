"""Round trips between machines: small UDP packets, which a worker of the other machine sends back.

An answer is the first half of what was asked, and an answer is never answered. So a packet with a forged sender makes
nobody send more than was sent, two machines cannot be set to answer each other for ever, and nothing that comes in is
ever parsed. Whoever answers does so on the one address that it was given, never on all of them.
"""

from __future__ import annotations

import ipaddress
import secrets
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterable, Mapping

from mosaic_queues.errors import ConfigurationError

ASK_BYTES = 32
ANSWER_BYTES = 16
ROUNDS = 3
TIMEOUT_S = 0.3
"""An answer that takes longer counts as lost; the rounds together take no longer than so often this."""


def parse_address(text: str) -> tuple[str, int]:
    """Address and port of `10.0.0.5`, `10.0.0.5:7070`, `fd00::5` or `[fd00::5]:7070`; port 0: any that is free.

    Raises:
        ConfigurationError: it is none of these, or stands for all addresses of a machine.
    """
    host, port = _split(text.strip())
    try:
        address, number = ipaddress.ip_address(host), int(port)
        is_one = not (address.is_unspecified or address.is_multicast) and 0 <= number < 1 << 16
    except ValueError:
        is_one = False
    if not is_one:
        raise ConfigurationError(
            f"MOSAIC_MACHINE_ADDRESS={text!r} is no address of this machine; give an IP address at which the others "
            "reach it, such as 10.0.0.5, with a port where a firewall wants to know it: 10.0.0.5:7070"
        )
    return str(address), number


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") or "0"
    host, colon, port = text.rpartition(":")
    return (host, port) if colon and ":" not in host else (text, "0")


class Echo:
    """Answers on one address, in a thread, until `close`.

    Args:
        text: see `parse_address`.

    Attributes:
        address: where it answers, with its port.

    Raises:
        ConfigurationError: the address cannot be used.
    """

    def __init__(self, text: str) -> None:
        host, port = parse_address(text)
        self._socket = socket.socket(_family(host), socket.SOCK_DGRAM)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(
                f"MOSAIC_MACHINE_ADDRESS={text!r} cannot be used ({error.strerror}); give an address of this machine, "
                "and no port that another program has"
            ) from error
        self._socket.setblocking(False)
        self.address = _joined(*self._socket.getsockname()[:2])
        self._woken, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="mosaic-echo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answers no more."""
        self._waker.close()
        self._thread.join()
        self._socket.close()
        self._woken.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            while all(key.fileobj is not self._woken for key, _ in ready.select()):
                self._answer()

    def _answer(self) -> None:
        try:
            asked, sender = self._socket.recvfrom(ASK_BYTES + 1)
            if len(asked) == ASK_BYTES:
                self._socket.sendto(asked[:ANSWER_BYTES], sender)
        except OSError:
            return  # nothing came after all, whoever asked is gone, or the network is busy: it asks again


def round_trips(
    addresses: Iterable[str], *, rounds: int = ROUNDS, timeout_s: float = TIMEOUT_S
) -> dict[str, float]:
    """Seconds to each of these addresses and back, the median of some rounds; without those that do not answer.

    Args:
        addresses: as `Echo.address` tells them; what is none is left out.
    """
    found: dict[str, list[float]] = {}
    for family, named in _by_family(addresses).items():
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            for _ in range(rounds):
                for name, seconds in _round(asking, named, timeout_s).items():
                    found.setdefault(name, []).append(seconds)
    return {name: statistics.median(measured) for name, measured in found.items()}


def _by_family(addresses: Iterable[str]) -> Mapping[socket.AddressFamily, dict[str, tuple[str, int]]]:
    found: dict[socket.AddressFamily, dict[str, tuple[str, int]]] = {}
    for name in addresses:
        try:
            host, port = parse_address(name)
        except ConfigurationError:
            continue
        if port:
            found.setdefault(_family(host), {})[name] = host, port
    return found


def _round(asking: socket.socket, named: Mapping[str, tuple[str, int]], timeout_s: float) -> dict[str, float]:
    """Asks all of them at once."""
    sent: dict[bytes, tuple[str, float]] = {}
    for name, address in named.items():
        packet = secrets.token_bytes(ASK_BYTES)
        sent[packet[:ANSWER_BYTES]] = name, time.perf_counter()
        try:
            asking.sendto(packet, address)
        except OSError:
            del sent[packet[:ANSWER_BYTES]]  # no way leads there
    return _answers(asking, sent, time.perf_counter() + timeout_s)


def _answers(
    asking: socket.socket, sent: dict[bytes, tuple[str, float]], deadline: float
) -> dict[str, float]:
    found: dict[str, float] = {}
    while sent and (left_s := deadline - time.perf_counter()) > 0:
        asking.settimeout(left_s)
        try:
            answer = asking.recv(ANSWER_BYTES + 1)
        except TimeoutError:
            break
        except OSError:
            continue  # the news that nobody listens at one of the addresses
        if (asked := sent.pop(answer, None)) is not None:
            found[asked[0]] = time.perf_counter() - asked[1]
    return found


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


__all__ = ["ANSWER_BYTES", "ASK_BYTES", "Echo", "parse_address", "round_trips"]

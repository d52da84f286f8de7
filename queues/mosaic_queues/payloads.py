"""Payloads: any value as a small envelope that travels in a run's state, large ones by reference.

An envelope's first byte tells where the value is:

| byte | the rest |
|---|---|
| 0x00 | the value itself, msgpack |
| 0x01 | the value itself, msgpack, zstd |
| 0x02 | a reference to a field of the hash `{namespace}:{run_id}:blobs` |
| 0x03 | a reference to the object `run_id/id` of the object store |
| 0x10 | no value: the node was skipped; the reason, UTF-8 |
| 0x11 | no value: that part of an output does not exist; the reason, UTF-8 |

A reference's id is the content hash (blake2b, 16 bytes) of the stored bytes and so their checksum as well:
reading verifies it, and the same value written twice by a repeated attempt is stored once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from mosaic_queues.errors import PayloadCorrupt, PayloadTooLarge
from mosaic_queues.keys import Keys
from mosaic_queues.objects import ObjectStore, open_objects, stored_bytes_key, stored_key
from mosaic_queues.scripts import Script
from mosaic_queues.settings import settings
from mosaic_queues.values import encode

if TYPE_CHECKING:
    import redis
    import zstandard

_RAW = 0x00
_ZSTD = 0x01
_BLOB = 0x02
_OBJECT = 0x03
_SKIPPED = 0x10
_ABSENT = 0x11

_RAW_BYTE = bytes([_RAW])
_COMPRESS_ABOVE = 512
_DIGEST_BYTES = 16
_UNOPENED_MS = 3_600_000
"""What is stored for a run that is not open (yet) goes after this, unless the run opens."""


class _Reference(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a stored value is, and what it must be."""

    digest: bytes
    stored_bytes: int
    codec: int

    @property
    def id(self) -> str:
        return self.digest.hex()


class _Codecs(threading.local):
    """This thread's zstd contexts, which threads must not share, made when first needed."""

    compressor: zstandard.ZstdCompressor | None = None
    decompressor: zstandard.ZstdDecompressor | None = None

    def compress(self, data: bytes) -> bytes:
        if self.compressor is None:
            import zstandard  # not at the top: small payloads must not pay for it

            self.compressor = zstandard.ZstdCompressor(level=3)
        return self.compressor.compress(data)

    def decompress(self, data: bytes, max_bytes: int) -> bytes:
        import zstandard

        if self.decompressor is None:
            self.decompressor = zstandard.ZstdDecompressor()
        try:
            size = zstandard.frame_content_size(data)
            if not 0 <= size <= max_bytes:
                raise PayloadCorrupt(f"a compressed payload claims {size} bytes, the cap is {max_bytes}")
            return self.decompressor.decompress(data)
        except zstandard.ZstdError as error:
            raise PayloadCorrupt(f"a compressed payload cannot be read: {error}") from error


_codecs = _Codecs()
_decode_value = msgspec.msgpack.Decoder().decode
_decode_reference = msgspec.msgpack.Decoder(_Reference).decode
_encode_reference = msgspec.msgpack.Encoder().encode


class PayloadStore:
    """Packs values into envelopes and back. Safe for threads and after a fork.

    Redis errors come through as they are; `mosaic_queues.connection.server_errors` translates them.

    Args:
        client: of the server, answering bytes.
        namespace: the prefix of all keys.
        inline_bytes: envelopes hold values up to this (compressed) size.
        redis_bytes: the server holds values up to this (compressed) size, the object store larger ones.
        max_payload_bytes: values whose msgpack form is larger are refused.
        objects: the object store; the settings' one, opened when first needed, if None.
        max_run_object_bytes: what the objects of one run may take together; one written again counts again.
        keep_s: how long objects are kept, counted from the last one written, unless told otherwise.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        namespace: str,
        inline_bytes: int,
        redis_bytes: int,
        max_payload_bytes: int,
        max_run_object_bytes: int,
        keep_s: float,
        objects: ObjectStore | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._keys = Keys(namespace)
        self._inline_bytes = inline_bytes
        self._small_bytes = min(_COMPRESS_ABOVE, inline_bytes, max_payload_bytes)
        self._redis_bytes = redis_bytes
        self._max_bytes = max_payload_bytes
        self._lazy_objects = objects
        self._max_run_object_bytes = max_run_object_bytes
        self._keep_ms = int(keep_s * 1e3)

    @classmethod
    def from_settings(cls, client: redis.Redis) -> Self:
        """A store with this process's settings."""
        chosen = settings()
        return cls(
            client,
            namespace=chosen.namespace,
            inline_bytes=chosen.inline_bytes,
            redis_bytes=chosen.redis_bytes,
            max_payload_bytes=chosen.max_payload_bytes,
            max_run_object_bytes=chosen.max_run_object_bytes,
            keep_s=chosen.max_run_s + chosen.retention_s,
        )

    def pack(self, run_id: str, value: Any, *, outside: bool = False) -> bytes:
        """Store a value of a run and return its envelope.

        Args:
            run_id: of the run.
            value: see below.
            outside: it goes to the object store, whatever its size.

        What a value may be, and as what it comes back, is told in `mosaic_queues.values`.

        Raises:
            NotSerializable: it has no msgpack form; the message names the place inside the value.
            PayloadTooLarge: it is larger than the cap, or the run's objects are with it.
            PayloadError: the object store refused it.
        """
        data = encode(value)
        if len(data) <= self._small_bytes and not outside:
            return _RAW_BYTE + data
        return self._pack_large(run_id, data, outside=outside)

    def unpack(self, run_id: str, envelope: bytes) -> Any:
        """The value of an envelope; None for a skipped one.

        Raises:
            PayloadCorrupt: its bytes are gone, or are not what was stored.
        """
        if envelope[:1] == _RAW_BYTE:
            return _decode(envelope[1:])
        return self.unpack_many(run_id, (envelope,))[0]

    def unpack_many(self, run_id: str, envelopes: Sequence[bytes]) -> list[Any]:
        """The values of several envelopes of a run, with one round trip for all that lie in the server.

        Raises:
            PayloadCorrupt: see `unpack`.
        """
        blobs = self._read_blobs(run_id, envelopes)
        return [self._open(run_id, envelope, blobs) for envelope in envelopes]

    @staticmethod
    def skipped(reason: str) -> bytes:
        """The envelope of a node that was skipped."""
        return bytes([_SKIPPED]) + reason.encode("utf-8", "replace")

    @staticmethod
    def is_skipped(envelope: bytes) -> str | None:
        """Why the node was skipped; None when it was not."""
        return envelope[1:].decode("utf-8", "replace") if envelope[:1] == b"\x10" else None

    @staticmethod
    def stored_bytes(envelope: bytes) -> int:
        """What an envelope takes of the server, with the value that it refers to."""
        referred = _reference(envelope).stored_bytes if envelope[:1] == b"\x02" else 0
        return len(envelope) + referred

    @staticmethod
    def missing(reason: str) -> bytes:
        """The envelope of a part of an output that does not exist."""
        return bytes([_ABSENT]) + reason.encode("utf-8", "replace")

    @staticmethod
    def is_missing(envelope: bytes) -> str | None:
        """Why the part does not exist; None when it does."""
        return envelope[1:].decode("utf-8", "replace") if envelope[:1] == b"\x11" else None

    def keep_objects_until(self, run_ids: Iterable[str], expires_s: float) -> None:
        """Say when the objects of runs may be deleted (seconds since the epoch); nothing for those that have none."""
        self._client.zadd(stored_key(self._namespace), dict.fromkeys(run_ids, int(expires_s * 1e3)), xx=True)

    def _pack_large(self, run_id: str, data: bytes, *, outside: bool) -> bytes:
        if len(data) > self._max_bytes:
            raise PayloadTooLarge(
                f"the value takes {len(data)} bytes, the cap is {self._max_bytes}; return a reference to it "
                "(a path, a URL), split it, or raise MOSAIC_MAX_PAYLOAD_BYTES"
            )
        codec, stored = _shrink(data)
        if len(stored) <= self._inline_bytes and not outside:
            return bytes([codec]) + stored
        digest = blake2b(stored, digest_size=_DIGEST_BYTES).digest()
        return self._store(run_id, _Reference(digest, len(stored), codec), stored, outside=outside)

    def _store(self, run_id: str, reference: _Reference, stored: bytes, *, outside: bool) -> bytes:
        if reference.stored_bytes <= self._redis_bytes and not outside:
            self._write_blob(run_id, reference, stored)
            place = _BLOB
        else:
            self._write_object(run_id, reference, stored)
            place = _OBJECT
        return bytes([place]) + _encode_reference(reference)

    def _write_blob(self, run_id: str, reference: _Reference, stored: bytes) -> None:
        argument = {"id": reference.id, "unopened_ms": _UNOPENED_MS}
        _STORE_BLOB(self._client, self._keys.run(run_id), argument, (stored,))

    def _write_object(self, run_id: str, reference: _Reference, stored: bytes) -> None:
        # Registered first: a crash between leaves a registration without an object, never an orphan.
        expires_ms = int(time.time() * 1e3) + self._keep_ms
        sizes = stored_bytes_key(self._namespace)
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.zadd(stored_key(self._namespace), {run_id: expires_ms})
            pipeline.zincrby(sizes, reference.stored_bytes, run_id)
            pipeline.pexpire(sizes, self._keep_ms)
            _, total, _ = pipeline.execute()
        if total > self._max_run_object_bytes:
            self._client.zincrby(sizes, -reference.stored_bytes, run_id)
            raise PayloadTooLarge(
                f"with this value of {reference.stored_bytes} bytes the run's objects take {total:.0f} bytes, the cap "
                f"is {self._max_run_object_bytes}; return a reference to it (a path, a URL), or raise "
                "MOSAIC_MAX_RUN_OBJECT_BYTES"
            )
        self._objects().put(f"{run_id}/{reference.id}", stored)

    def _read_blobs(self, run_id: str, envelopes: Iterable[bytes]) -> Mapping[str, bytes | None]:
        wanted = {_reference(envelope).id for envelope in envelopes if envelope[:1] == b"\x02"}
        if not wanted:
            return {}
        fields = list(wanted)
        found = self._client.hmget(self._keys.run(run_id)[4], fields)
        return dict(zip(fields, cast("list[bytes | None]", found), strict=True))

    def _open(self, run_id: str, envelope: bytes, blobs: Mapping[str, bytes | None]) -> Any:
        match envelope[0] if envelope else None:
            case 0x00:
                return _decode(envelope[1:])
            case 0x01:
                return _decode(_codecs.decompress(envelope[1:], self._max_bytes))
            case 0x02:
                reference = _reference(envelope)
                return self._restore(run_id, reference, blobs[reference.id])
            case 0x03:
                reference = _reference(envelope)
                return self._restore(run_id, reference, self._objects().get(f"{run_id}/{reference.id}"))
            case 0x10:
                return None
        raise PayloadCorrupt(f"{envelope[:16]!r} is no envelope; was it written by another version?")

    def _restore(self, run_id: str, reference: _Reference, stored: bytes | None) -> Any:
        if stored is None:
            raise PayloadCorrupt(
                f"payload {reference.id!r} of run {run_id!r} ({reference.stored_bytes} bytes) is gone "
                "from the server: the run's retention passed, or the server evicted or lost it "
                "(see: mosaic doctor)"
            )
        if blake2b(stored, digest_size=_DIGEST_BYTES).digest() != reference.digest:
            raise PayloadCorrupt(
                f"payload {reference.id!r} of run {run_id!r} is not what was stored: {len(stored)} "
                f"bytes were read, {reference.stored_bytes} were written, the checksum does not match; "
                "run the node again"
            )
        return _decode(_codecs.decompress(stored, self._max_bytes) if reference.codec == _ZSTD else stored)

    def _objects(self) -> ObjectStore:
        if self._lazy_objects is None:
            self._lazy_objects = open_objects()
        return self._lazy_objects


def _shrink(data: bytes) -> tuple[int, bytes]:
    """The codec and the bytes to store: compressed when that saves an eighth."""
    if len(data) > _COMPRESS_ABOVE:
        compressed = _codecs.compress(data)
        if len(compressed) <= len(data) - len(data) // 8:
            return _ZSTD, compressed
    return _RAW, data


def _reference(envelope: bytes) -> _Reference:
    try:
        return _decode_reference(envelope[1:])
    except msgspec.DecodeError as error:
        raise PayloadCorrupt(f"the reference {envelope[:64]!r} cannot be read: {error}") from error


def _decode(data: bytes) -> Any:
    try:
        return _decode_value(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PayloadCorrupt(f"a payload of {len(data)} bytes is not msgpack: {error}") from error


_STORE_BLOB = Script("store_blob")

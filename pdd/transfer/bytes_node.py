"""A rank that is nothing but a pool of bytes and an engine: for tests and benchmarks of transfers.

One process per rank (``python -m pdd.transfer.bytes_node CONFIG_JSON``), driven by JSON lines:
commands on standard input, answers and events on standard output. Control messages go from rank to
rank as datagrams over Unix sockets in one folder, whose permissions are all the authentication
there is: never for production, where they travel between the daemons over mTLS.

Config keys: ``name``, ``uuid``, ``boot_epoch``, ``rank``, ``control_folder``, ``block_count``,
``layer_count``, ``segment_bytes``, ``settings`` (of ``TransferSettings``, with ``faults``).
"""

import dataclasses
import json
import os
import resource
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import xxhash

from pdd.core.identity import NodeIdentity, NodeName
from pdd.transfer.engine import TransferEngine
from pdd.transfer.pool import BlockPool, Region, page_aligned
from pdd.transfer.settings import TransferFaults, TransferSettings
from pdd.transfer.values import Peer

MAX_DATAGRAM_BYTES = 4 << 20


def make_pool(*, block_count: int, layer_count: int, segment_bytes: int) -> BlockPool:
    """A layer-major pool; with one layer it is block-major."""
    memory = page_aligned(block_count * layer_count * segment_bytes)
    region = Region(
        offset=0,
        layer_count=layer_count,
        layer_stride=block_count * segment_bytes,
        block_stride=segment_bytes,
        segment_bytes=segment_bytes,
    )
    return BlockPool(memory, regions=[region], block_count=block_count)


def make_settings(given: dict[str, Any]) -> TransferSettings:
    """Settings from JSON; names as in the dataclasses."""
    faults = TransferFaults(**given.get("faults", {}))
    rest = {name: value for name, value in given.items() if name != "faults"}
    return TransferSettings(faults=faults, **rest)


def peer_to_json(peer: Peer) -> dict[str, Any]:
    """A peer as it is passed between the processes of a test."""
    return {
        "name": peer.identity.name,
        "uuid": peer.identity.uuid,
        "boot_epoch": peer.identity.boot_epoch,
        "rank": peer.rank,
        "control_address": peer.control_address,
        "ucx_address": peer.ucx_address.hex(),
    }


def peer_from_json(given: dict[str, Any]) -> Peer:
    """The reverse of ``peer_to_json``."""
    return Peer(
        identity=NodeIdentity(
            name=NodeName(given["name"]), uuid=given["uuid"], boot_epoch=given["boot_epoch"]
        ),
        rank=given["rank"],
        control_address=given["control_address"],
        ucx_address=bytes.fromhex(given["ucx_address"]),
    )


class BytesNode:
    """One rank; ``serve`` runs until ``exit`` or the end of standard input."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.pool = make_pool(
            block_count=config["block_count"],
            layer_count=config["layer_count"],
            segment_bytes=config["segment_bytes"],
        )
        self.identity = NodeIdentity(
            name=NodeName(config["name"]), uuid=config["uuid"], boot_epoch=config["boot_epoch"]
        )
        self.rank = config.get("rank", 0)
        self._control_address = str(
            Path(config["control_folder"]) / f"{config['name']}.{self.rank}.sock"
        )
        Path(self._control_address).unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_DATAGRAM_BYTES)
        self._socket.setblocking(False)
        self._socket.bind(self._control_address)
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.engine = TransferEngine(
            pool=self.pool,
            identity=self.identity,
            rank=self.rank,
            settings=make_settings(config.get("settings", {})),
            send_control=self._send_control,
            on_event=lambda: os.eventfd_write(self._event_fd, 1),
        )
        self.peer = Peer(
            identity=self.identity,
            rank=self.rank,
            control_address=self._control_address,
            ucx_address=self.engine.start(),
        )
        self._running = True
        # UCX writes its errors to standard output; here that is a channel of its own.
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def _send_control(self, peer: Peer, payload: bytes) -> None:
        """In the transfer thread. A dead or full receiver is an ``OSError``: a lost message."""
        packed = msgpack.packb([json.dumps(peer_to_json(self.peer)), payload])
        self._socket.sendto(packed, peer.control_address)

    def serve(self) -> None:
        """Serve commands, control messages and events."""
        self._say({"ready": True, "peer": peer_to_json(self.peer)})
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ, self._on_command)
            selector.register(self._socket, selectors.EVENT_READ, self._on_control)
            selector.register(self._event_fd, selectors.EVENT_READ, self._on_event)
            while self._running:
                for key, _ in selector.select():
                    key.data()
        self.engine.close()
        self._socket.close()
        self._answers.close()
        Path(self._control_address).unlink(missing_ok=True)

    def _say(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def _on_control(self) -> None:
        sender, payload = msgpack.unpackb(self._socket.recv(MAX_DATAGRAM_BYTES))
        self.engine.deliver_control(peer_from_json(json.loads(sender)), payload)

    def _on_event(self) -> None:
        os.eventfd_read(self._event_fd)
        for event in self.engine.poll():
            self._say(
                {
                    "event": type(event).__name__,
                    "at_s": time.monotonic(),
                    **dataclasses.asdict(event),
                }
            )

    def _on_command(self) -> None:
        line = sys.stdin.readline()
        if not line:
            self._running = False
            return
        command = json.loads(line)
        name = command.pop("do")
        answer = getattr(self, f"do_{name}")(**command)
        self._say({"done": name, "at_s": time.monotonic(), **(answer or {})})

    # ------------------------------------------------------------------------------ commands

    def do_exit(self) -> None:
        """Stop serving."""
        self._running = False

    def do_fill(self, seed: int | None) -> None:
        """Write random bytes everywhere, or zeros."""
        if seed is None:
            self.pool.memory[:] = 0  # type: ignore[index]
            return
        words = np.random.default_rng(seed).integers(
            0, 1 << 63, -(-self.pool.size_bytes // 8), np.uint64
        )
        self.pool.memory[:] = words.view(np.uint8)[: self.pool.size_bytes]  # type: ignore[index]

    def do_digests(self, block_ids: list[int]) -> dict[str, Any]:
        """xxh3-64 of each block's packed form, taken afresh from the pool."""
        packed = np.zeros(self.pool.block_bytes, np.uint8)
        digests = []
        for block_id in block_ids:
            self.pool.gather([block_id], packed)
            digests.append(xxhash.xxh3_64_hexdigest(packed.data))
        return {"digests": digests}

    def do_memcpy(self, block_ids: list[int]) -> dict[str, Any]:
        """GB/s of one thread that copies these blocks into a packed buffer; the best of three."""
        packed = np.zeros(len(block_ids) * self.pool.block_bytes, np.uint8)
        times = []
        for _ in range(3):
            start_s = time.perf_counter()
            self.pool.gather(block_ids, packed)
            times.append(time.perf_counter() - start_s)
        return {"gb_per_s": packed.nbytes / 1e9 / min(times)}

    def do_usage(self) -> dict[str, Any]:
        """CPU seconds of this process so far, and the engine's statistics."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {"cpu_s": used.ru_utime + used.ru_stime, "stats": self.engine.stats()}

    def do_connect(self, peer: dict[str, Any]) -> None:
        """Set a connection up before it is needed."""
        self.engine.connect(peer_from_json(peer))

    def do_disconnect(self, peer: dict[str, Any]) -> None:
        """Close a connection."""
        self.engine.disconnect(peer_from_json(peer))

    def do_source_open(self, key: str, deadline_s: float) -> None:
        """See ``TransferEngine``; likewise below."""
        self.engine.source_open(key, deadline_s=deadline_s)

    def do_source_append(
        self, key: str, first_index: int, block_ids: list[int], last: bool
    ) -> None:
        self.engine.source_append(key, first_index=first_index, block_ids=block_ids, last=last)

    def do_source_abort(self, key: str) -> None:
        self.engine.source_abort(key, "command")

    def do_target_open(
        self,
        key: str,
        source: dict[str, Any],
        first_index: int,
        block_ids: list[int],
        deadline_s: float,
    ) -> None:
        self.engine.target_open(
            key,
            source=peer_from_json(source),
            first_index=first_index,
            block_ids=block_ids,
            deadline_s=deadline_s,
        )

    def do_target_cancel(self, key: str) -> None:
        self.engine.target_cancel(key)


if __name__ == "__main__":
    BytesNode(json.loads(sys.argv[1])).serve()

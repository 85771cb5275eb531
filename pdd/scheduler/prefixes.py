"""Who holds which prefix: what nodes said, and what can be guessed from where requests went.

What nodes said comes from the block directory through ``PrefixDirectory``, read only. A node whose
cache is not followed there is guessed: it holds what was sent to it last. A guess gives a
preference and a prediction, no more: the engine's own hash decides what is reused, and a request
that finds less than was guessed corrects it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pdd.core.identity import NodeIdentity, NodeName, Role
from pdd.core.values import frozen
from pdd.scheduler.nodes import Node

KEY_SIZE_BYTES = 16
_STRIDE = 8
"""Of a chain every eighth key is remembered, and the last one."""
_SETTLE_S = 30.0
"""So long after a request was sent to a node, the node may still be about to store its blocks."""


class PrefixDirectory(Protocol):
    """The block directory, as far as decisions need it."""

    def is_known(self, node: NodeName) -> bool:
        """Whether a node's cache is followed, so that what is not told of it is not there."""
        ...

    def matches(self, keys: bytes) -> Mapping[NodeName, int]:
        """Leading blocks of a chain that nodes hold without a hole; of nodes that are known and
        hold some. ``keys``: 16 bytes each, joined, as ``pdd.directory.keys`` makes them."""
        ...


class NoDirectory:
    """Knows no cache."""

    def is_known(self, node: NodeName) -> bool:
        """See ``PrefixDirectory``."""
        return False

    def matches(self, keys: bytes) -> Mapping[NodeName, int]:
        """See ``PrefixDirectory``."""
        return {}


@frozen
class _Home:
    """Where a prefix went first, and has a preference for since."""

    identity: NodeIdentity
    cache_generation: int
    since_s: float


class Chain:
    """The keys of a prompt's blocks. ``strides``: every ``_STRIDE``-th of them."""

    __slots__ = ("block_count", "keys", "strides")

    def __init__(self, keys: bytes) -> None:
        """``keys``: 16 bytes each, joined."""
        self.keys = keys
        self.block_count = len(keys) // KEY_SIZE_BYTES
        step = _STRIDE * KEY_SIZE_BYTES
        self.strides = [
            keys[end - KEY_SIZE_BYTES : end] for end in range(step, len(keys) + 1, step)
        ]

    def key(self, position: int) -> bytes:
        """Of the first ``position`` blocks; at least 1."""
        return self.keys[(position - 1) * KEY_SIZE_BYTES : position * KEY_SIZE_BYTES]


NO_CHAIN = Chain(b"")


@frozen
class Preference:
    """``block_count`` leading blocks went to ``node`` before."""

    node: NodeName
    block_count: int


@dataclass(slots=True, kw_only=True)
class Homes:
    """Prefixes and callers' keys, each with the node that is to get them, for one role.

    A node that is above its load gives nothing of this up: the key comes back when it has room. A
    node that is lost, restarted or without the blocks has lost the preference. Bounded: the
    entries least used are forgotten, and go wherever the scorers send them.
    """

    role: Role
    entry_count_max: int
    _homes: OrderedDict[bytes, _Home] = field(default_factory=OrderedDict)

    def prefix(
        self,
        chain: Chain,
        *,
        nodes: Mapping[NodeName, Node],
        directory: PrefixDirectory,
        now_s: float,
    ) -> Preference | None:
        """The node of the longest known prefix.

        Of a chain every ``_STRIDE``-th key is remembered and the last one: it is enough to step
        along the former, and to look at each key after the last that is known.
        """
        homes, keys = self._homes, chain.keys
        known = self._known_strides(chain)
        beyond = range(min(known + _STRIDE - 1, chain.block_count), known, -1)
        for position in (*beyond, *range(known, 0, -_STRIDE)):
            end = position * KEY_SIZE_BYTES
            key = keys[end - KEY_SIZE_BYTES : end]
            home = homes.get(key)
            if home is None:
                continue
            if not self._holds_true(home, nodes) or (
                now_s - home.since_s > _SETTLE_S and _has_lost(home, chain, position, directory)
            ):
                del homes[key]
                continue
            homes.move_to_end(key)
            return Preference(node=home.identity.name, block_count=position)
        return None

    def _known_strides(self, chain: Chain) -> int:
        """Blocks up to the first stride that is not remembered; those that are were used now."""
        homes, known = self._homes, 0
        for key in chain.strides:
            if key not in homes:
                break
            homes.move_to_end(key)
            known += _STRIDE
        return known

    def caller(self, name: bytes, *, nodes: Mapping[NodeName, Node]) -> NodeName | None:
        """The node of a caller's own key."""
        home = self._homes.get(name)
        if home is None:
            return None
        if not self._holds_true(home, nodes):
            del self._homes[name]
            return None
        self._homes.move_to_end(name)
        return home.identity.name

    def remember(self, chain: Chain, *, caller: bytes, node: Node, now_s: float) -> None:
        """A request went to ``node``. What has a home keeps it."""
        homes = self._homes
        home = _Home(identity=node.identity, cache_generation=node.cache_generation, since_s=now_s)
        for key in chain.strides:
            homes.setdefault(key, home)
        if chain.block_count % _STRIDE:
            homes.setdefault(chain.key(chain.block_count), home)
        if caller:
            homes.setdefault(caller, home)
        while len(homes) > self.entry_count_max:
            homes.popitem(last=False)

    def evict(self, node: NodeName, keys: bytes) -> None:
        """The node no longer holds these blocks: it loses the preference for them at once."""
        for start in range(0, len(keys), KEY_SIZE_BYTES):
            key = keys[start : start + KEY_SIZE_BYTES]
            home = self._homes.get(key)
            if home is not None and home.identity.name == node:
                del self._homes[key]

    def _holds_true(self, home: _Home, nodes: Mapping[NodeName, Node]) -> bool:
        node = nodes.get(home.identity.name)
        return (
            node is not None
            and node.role is self.role
            and node.identity == home.identity
            and node.cache_generation == home.cache_generation
            and node.takes_work
        )


def _has_lost(home: _Home, chain: Chain, position: int, directory: PrefixDirectory) -> bool:
    """Whether less than half of the first ``position`` blocks are there any more."""
    name = home.identity.name
    if not directory.is_known(name):
        return False
    return 2 * min(directory.matches(chain.keys).get(name, 0), position) < position


def caller_name(*, tenant: str, key: str) -> bytes:
    """A caller's key among all: no tenant can meet another one's, nor a block's key."""
    if not key:
        return b""
    return b"caller\0" + f"{len(tenant)}:{tenant}:{key}".encode()

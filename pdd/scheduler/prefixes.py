"""Who holds which prefix: what nodes said, and what can be guessed from where requests went.

What nodes said comes from the block directory through ``PrefixDirectory``, read only. A node whose
cache is not followed there is guessed: it holds what was sent to it last. A guess gives a
preference and a prediction, no more: the engine's own hash decides what is reused, and a request
that finds less than was guessed corrects it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

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


_Homes: TypeAlias = tuple[_Home | None, _Home | None]
"""Of one prefix or key: where its prompts are computed, where they are decoded."""
_NO_HOMES: _Homes = (None, None)
_DUTIES = {Role.PREFILL: 0, Role.DECODE: 1}


@dataclass(slots=True)
class Trail:
    """What is remembered of a chain. ``strides``: of the first ones, up to the first that nobody
    remembers. ``ends``: what is known between that one and the stride before it, in blocks,
    longest first."""

    strides: list[_Homes]
    ends: list[int]


@dataclass(slots=True, kw_only=True)
class Homes:
    """Prefixes and callers' keys, each with the node of each role that is to get them.

    A node that is above its load gives nothing of this up: the key comes back when it has room. A
    node that is lost, restarted or without the blocks has lost the preference. Bounded: the
    entries least used are forgotten, and go wherever the scorers send them.
    """

    entry_count_max: int
    _homes: OrderedDict[bytes, _Homes] = field(default_factory=OrderedDict)
    _has_ends: set[bytes] = field(default_factory=set)
    """Strides (``b""``: the start) behind which a chain has ended before the next one. They go with
    their stride, without which nobody gets so far."""

    def __len__(self) -> int:
        return len(self._homes)

    def trail(self, chain: Chain) -> Trail:
        """Of every chain the strides are remembered, and its end: it is enough to step along the
        former, and to look at each key after the last that is known. They were used now."""
        homes, strides = self._homes, []
        for key in chain.strides:
            at_key = homes.get(key)
            if at_key is None:
                break
            homes.move_to_end(key)
            strides.append(at_key)
        return Trail(strides, self._ends(chain, len(strides) * _STRIDE))

    def _ends(self, chain: Chain, known: int) -> list[int]:
        if (chain.strides[known // _STRIDE - 1] if known else b"") not in self._has_ends:
            return []
        longest = min(known + _STRIDE - 1, chain.block_count)
        keys, size, homes = chain.keys, KEY_SIZE_BYTES, self._homes
        return [
            at for at in range(longest, known, -1) if keys[(at - 1) * size : at * size] in homes
        ]

    def prefix(
        self,
        chain: Chain,
        trail: Trail,
        *,
        role: Role,
        nodes: Mapping[NodeName, Node],
        directory: PrefixDirectory,
        now_s: float,
    ) -> Preference | None:
        """The node of the longest known prefix. ``trail``: of ``chain``, as it is now."""
        duty, known = _DUTIES[role], 0
        for at_key in trail.strides:
            if at_key[duty] is None:
                break
            known += _STRIDE
        is_all = known == len(trail.strides) * _STRIDE
        ends = trail.ends if is_all else self._ends(chain, known)
        for position in (*ends, *range(known, 0, -_STRIDE)):
            key = chain.key(position)
            home = self._homes.get(key, _NO_HOMES)[duty]
            if home is None:
                continue
            if not _holds_true(home, role, nodes) or (
                now_s - home.since_s > _SETTLE_S and _has_lost(home, chain, position, directory)
            ):
                self._forget(key, duty)
                continue
            self._homes.move_to_end(key)
            return Preference(node=home.identity.name, block_count=position)
        return None

    def caller(self, name: bytes, *, role: Role, nodes: Mapping[NodeName, Node]) -> NodeName | None:
        """The node of a caller's own key."""
        duty = _DUTIES[role]
        home = self._homes.get(name, _NO_HOMES)[duty]
        if home is None:
            return None
        if not _holds_true(home, role, nodes):
            self._forget(name, duty)
            return None
        self._homes.move_to_end(name)
        return home.identity.name

    def remember(
        self,
        chain: Chain,
        *,
        caller: bytes,
        prefill: Node | None,
        decode: Node | None,
        now_s: float,
    ) -> None:
        """A request went to these. What has a home keeps it."""
        new, homes = (_home(prefill, now_s), _home(decode, now_s)), self._homes
        ends = []
        if chain.block_count % _STRIDE:
            ends = [chain.key(chain.block_count)]
            self._has_ends.add(chain.strides[-1] if chain.strides else b"")
        for key in (*chain.strides, *ends, *([caller] if caller else [])):
            former = homes.get(key)
            if former is None:
                homes[key] = new
            elif former[0] is None or former[1] is None:
                homes[key] = (former[0] or new[0], former[1] or new[1])
        while len(homes) > self.entry_count_max:
            oldest, _ = homes.popitem(last=False)
            self._has_ends.discard(oldest)

    def evict(self, node: NodeName, role: Role, keys: bytes) -> None:
        """The node no longer holds these blocks: it loses the preference for them at once."""
        duty = _DUTIES[role]
        for start in range(0, len(keys), KEY_SIZE_BYTES):
            key = keys[start : start + KEY_SIZE_BYTES]
            home = self._homes.get(key, _NO_HOMES)[duty]
            if home is not None and home.identity.name == node:
                self._forget(key, duty)

    def _forget(self, key: bytes, duty: int) -> None:
        other = self._homes[key][1 - duty]
        if other is None:
            del self._homes[key]
            self._has_ends.discard(key)
        else:
            self._homes[key] = (other, None) if duty else (None, other)


def _home(node: Node | None, now_s: float) -> _Home | None:
    if node is None:
        return None
    return _Home(identity=node.identity, cache_generation=node.cache_generation, since_s=now_s)


def _holds_true(home: _Home, role: Role, nodes: Mapping[NodeName, Node]) -> bool:
    node = nodes.get(home.identity.name)
    return (
        node is not None
        and node.role is role
        and (node.identity is home.identity or node.identity == home.identity)
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

"""The soft part: the block directory and the sequence table, fed by the log's soft entries.

Which nodes there are comes from the hard entries, so the directory agrees with the members whatever
was lost of it. After `begin` (a start, or a snapshot instead of entries) every member's blocks are
unknown and asked for: `DirectoryMachine.nodes_wanting_snapshot` names them.
"""

from __future__ import annotations

from collections.abc import Callable

from pdd.cell.operations import MemberJoined, MemberLeft
from pdd.cell.state import CellState
from pdd.directory.entries import DirectoryEntry, NodeJoined, NodeLeft
from pdd.directory.machine import DirectoryMachine

MakeDirectory = Callable[[], DirectoryMachine]


class FollowedDirectory:
    """Implements `pdd.cell.machine.Soft`. ``directory`` is another object after `begin`."""

    def __init__(self, make: MakeDirectory) -> None:
        self._make = make
        self.directory = make()

    def apply(self, index: int, data: bytes) -> None:
        """A faulty entry changes nothing, and its result is nobody's."""
        self.directory.apply(index, data)

    def member_joined(self, joined: MemberJoined) -> None:
        """Its cache is empty."""
        self._tell(
            NodeJoined(
                node=joined.node,
                uuid=joined.uuid,
                boot_epoch=joined.boot_epoch,
                block_count=joined.block_count,
            )
        )

    def member_left(self, left: MemberLeft) -> None:
        """Its blocks are gone, and what it owned has no owner."""
        self._tell(NodeLeft(node=left.node, boot_epoch=left.boot_epoch))

    def begin(self, state: CellState) -> None:
        """Members whose blocks nobody here knows."""
        self.directory = self._make()
        for name in state.members.names():
            member = state.members[name]
            self._tell(
                NodeJoined(
                    node=name,
                    uuid=member.uuid,
                    boot_epoch=member.boot_epoch,
                    block_count=member.block_count,
                )
            )
            self.directory.note_lost(name)

    def _tell(self, operation: NodeJoined | NodeLeft) -> None:
        entry = DirectoryEntry(leader_time_ms=0, operations=(operation,))
        self.directory.apply(0, entry.encode())

"""Whether a node may attach: it fits the cluster, the name is its own, its life is the latest."""

from collections.abc import Mapping

from pdd.cell.operations import MemberJoined, Status
from pdd.cell.state import MEMBERS_MAX
from pdd.control.cluster_ports import JoinRefused
from pdd.control.convert import identity_from_proto
from pdd.core.identity import NodeIdentity, NodeName, NodeState, Role
from pdd.daemon.agreement import Agreement
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.transfer.pairing import pair_faults


class NodeAdmission:
    """Asked before a node is attached; keeps nothing itself."""

    def __init__(
        self,
        *,
        core: SchedulerCore,
        agreement: Agreement,
        hellos: Mapping[NodeName, cluster_pb2.Hello],
        model: str,
        tokenizer_digest: str,
    ) -> None:
        """``hellos``: of every node that the core knows. ``tokenizer_digest``: see the driver."""
        self._core = core
        self._agreement = agreement
        self._hellos = hellos
        self._model = model
        self._tokenizer_digest = tokenizer_digest

    def refuse_misfit(self, hello: cluster_pb2.Hello) -> None:
        """Compare a node with the cluster, key by key. Raises JoinRefused."""
        name = hello.identity.name
        if hello.role not in (Role.PREFILL, Role.DECODE):
            raise JoinRefused(f"node {name} has role {hello.role!r}; only nodes attach")
        for field, least in (("block_size", 1), ("block_count", 2), ("max_num_seqs", 1)):
            if (value := getattr(hello, field)) < least:
                raise JoinRefused(f"node {name} has {field} = {value}, the least is {least}")
        if hello.model != self._model:
            raise JoinRefused(
                f"node {name} serves model {hello.model!r}, this cluster {self._model!r}"
            )
        tokenizer = hello.fingerprint.get("tokenizer", "")
        if self._tokenizer_digest and tokenizer != self._tokenizer_digest:
            raise JoinRefused(
                f"node {name} has tokenizer = {tokenizer or '-'}, this scheduler has "
                f"{self._tokenizer_digest}: give both the same model folder"
            )
        for other_name, node in sorted(self._core.nodes.items()):
            if other_name == name or node.state is NodeState.LOST:
                continue
            faults = pair_faults(
                hello.fingerprint,
                self._hellos[other_name].fingerprint,
                here=f"at node {name}",
                peer=f"node {other_name}",
            )
            if faults:
                raise JoinRefused(f"blocks could not be exchanged: {'; '.join(faults)}")

    async def agree(self, hello: cluster_pb2.Hello) -> None:
        """With the other schedulers on this life of the node; once in each life: a stream that
        broke is nothing to agree on.

        Raises:
            JoinRefused: it is a former life, or there are too many nodes.
            AgreementUnavailable: the schedulers could not agree in time.
        """
        identity = identity_from_proto(hello.identity)
        known = self._agreement.state.members.get(identity.name)
        if known is not None and (known.uuid, known.boot_epoch) == _life_of(identity):
            return
        status = await self._agreement.say(
            MemberJoined(
                node=identity.name,
                uuid=identity.uuid,
                boot_epoch=identity.boot_epoch,
                role=hello.role,
                address=hello.address,
                block_count=hello.block_count,
            )
        )
        if status is Status.STALE:
            latest = self._agreement.state.members.get(identity.name)
            raise JoinRefused(
                f"{identity} is a former life: boot {latest.boot_epoch if latest else '?'} of it "
                "has joined before; if its identity.json was restored from an old copy, remove "
                "it, and it joins as a new node"
            )
        if status is Status.FULL:
            raise JoinRefused(f"there are {MEMBERS_MAX} nodes, the most; see 'pdd node list'")


def refuse_intruder(identity: NodeIdentity, present: NodeIdentity) -> None:
    """A name belongs to the node that is attached, and to its later lives. Raises JoinRefused."""
    if identity.uuid != present.uuid:
        raise JoinRefused(
            f"the name {identity.name} is in use by {present}; this is {identity}: give one "
            "of the two nodes another node.name"
        )
    if identity.boot_epoch < present.boot_epoch:
        raise JoinRefused(f"{identity} is a former life of {present}")


def _life_of(identity: NodeIdentity) -> tuple[str, int]:
    """What tells one life of a name from another."""
    return identity.uuid, identity.boot_epoch

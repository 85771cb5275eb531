"""Two synthetic engines in this process, over real UCX, with the test as their scheduler."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pdd.connector.params import JobKind, Pull, SourceNode
from pdd.core.identity import NodeIdentity, NodeName
from pdd.core.sampling import Sampling
from pdd.engine.port import EngineInfo, Job, JobFacts, PeerControl, StepOutput
from pdd.engine.synthetic.engine import SyntheticEngine
from pdd.engine.synthetic.model import TURN_END, make_tokenizer, words_of
from pdd.engine.synthetic.settings import SyntheticFaults, SyntheticSettings
from pdd.timing.roofline import Roofline
from pdd.timing.sheets import DEVICES, MODELS
from pdd.transfer.pairing import PeerNode, RankLink, pair_faults, rank_links
from pdd.transfer.settings import TransferFaults, TransferSettings
from tests.waiting import until

TOKENIZER = make_tokenizer()
EOS = TOKENIZER.token_to_id(TURN_END)
VOCAB_SIZE = TOKENIZER.get_vocab_size()
WORDS = words_of(TOKENIZER, eos_token_ids=(EOS,), size=VOCAB_SIZE)
WAIT_S = 20.0
"""How long a test waits for something to happen before it fails; nothing is measured with it."""


def settings(*, transfer: dict[str, Any] | None = None, **fields: Any) -> SyntheticSettings:
    """Small and as fast as the machine can."""
    defaults: dict[str, Any] = {
        "served_model_name": "synthetic",
        "block_count": 129,
        "block_size": 16,
        "row_bytes": 64,
        "max_model_len": 4096,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 16,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": (EOS,),
        "cost": Roofline(model=MODELS["llama-3-8b"], device=DEVICES["h100"], scale=0.0),
        "transfer": TransferSettings(faults=TransferFaults(**(transfer or {}))),
        "transport": "tcp",
        "devices": "lo",
        "faults": SyntheticFaults(),
    }
    return SyntheticSettings(**(defaults | fields))


@dataclass
class Node:
    """One engine and what it has told."""

    name: str
    engine: SyntheticEngine
    identity: NodeIdentity
    info: EngineInfo | None = None
    ready: dict[str, JobFacts] = field(default_factory=dict)

    @property
    def source(self) -> SourceNode:
        assert self.info is not None
        return SourceNode(
            name=self.name,
            uuid=self.identity.uuid,
            boot_epoch=self.identity.boot_epoch,
            control_address=self.name,
            ucx_addresses=self.info.ucx_addresses,
        )

    def counts(self) -> tuple[int, int, int]:
        """Active, leased, quarantined, after a check."""
        self.engine.check()
        counts = self.engine.batch.ledger.counts()
        return counts.active, counts.leased, counts.quarantined

    async def wait_quiet(self) -> None:
        """Until nobody holds a block."""
        await until(
            lambda: self.counts() == (0, 0, 0),
            lambda: f"{self.name} to hold nothing; it holds {self.counts()}",
        )


@asynccontextmanager
async def nodes(*configured: SyntheticSettings) -> AsyncIterator[list[Node]]:
    """Started engines that can reach each other's transfers; stopped at the end."""
    made: list[Node] = []
    for index, one in enumerate(configured):
        identity = NodeIdentity(name=NodeName(f"n{index}"), uuid=f"uuid-{index}", boot_epoch=1)
        engine = SyntheticEngine(
            settings=one,
            identity=identity,
            tokenizer=TOKENIZER,
            words=WORDS,
            clock=time.monotonic,
        )
        made.append(Node(name=identity.name, engine=engine, identity=identity))
    by_name = {node.name: node for node in made}
    failures = [asyncio.create_task(node.engine.wait_failed()) for node in made]
    try:
        for node in made:
            node.info = await node.engine.start()
            node.engine.on_control(_carry(node, by_name))
            node.engine.on_ready(node.ready.__setitem__)
        yield made
        died = [failure.result() for failure in failures if failure.done()]
        assert not died, died
    finally:
        for failure in failures:
            failure.cancel()
        for node in made:
            await node.engine.stop()


def _carry(node: Node, by_name: dict[str, Node]) -> Any:
    """Hand a control message to the peer's rank, as the daemons do over gRPC."""

    def send(message: PeerControl) -> None:
        by_name[message.peer.name].engine.deliver_control(
            PeerControl(
                own_rank=message.peer_rank,
                peer=node.identity,
                peer_rank=message.own_rank,
                peer_address=node.name,
                peer_ucx_address=b"",
                payload=message.payload,
            )
        )

    return send


def links_between(node: Node, peer: Node) -> list[RankLink]:
    """What ``node`` connects when it hears of ``peer``."""
    assert node.info is not None
    assert peer.info is not None
    assert pair_faults(node.info.fingerprint, peer.info.fingerprint, peer=peer.name) == []
    told = PeerNode(
        identity=peer.identity,
        control_address=peer.name,
        ucx_addresses=peer.info.ucx_addresses,
        fingerprint=peer.info.fingerprint,
    )
    return rank_links(node.info.fingerprint, rank_count=len(node.info.ucx_addresses), peer=told)


async def connected(node: Node, *, count: int) -> None:
    """Waits until the node tells so many connections."""
    await until(
        lambda: len(node.engine.connections()) == count,
        lambda: f"{count} connections; there are {node.engine.connections()}",
    )


async def joined(one: Node, other: Node) -> None:
    for node, peer in ((one, other), (other, one)):
        node.engine.connect(links_between(node, peer))
    for node, peer in ((one, other), (other, one)):
        await connected(node, count=len(links_between(node, peer)))


def make_job(prompt: list[int], *, key: str, kind: JobKind = JobKind.LOCAL, **fields: Any) -> Job:
    sampling = {
        name: fields.pop(name) for name in list(fields) if name in Sampling.__dataclass_fields__
    }
    defaults: dict[str, Any] = {
        "cache_salt": "",
        "priority": 0,
        "deadline_s": WAIT_S,
        "source": None,
    }
    return Job(
        key=key,
        kind=kind,
        prompt_token_ids=tuple(prompt),
        sampling=Sampling(**({"max_tokens": 8, "temperature": 0.0} | sampling)),
        **(defaults | fields),
    )


async def outputs_of(node: Node, job: Job) -> list[StepOutput]:
    """Every output of a job."""
    async with asyncio.timeout(WAIT_S):
        return [output async for output in node.engine.run(job)]


def tokens_of(outputs: list[StepOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


async def local(node: Node, job: Job) -> list[StepOutput]:
    """All on one node."""
    outputs = await outputs_of(node, replace(job, kind=JobKind.LOCAL))
    node.engine.forget(job.key)
    return outputs


async def disaggregated(
    prefill: Node, decode: Node, job: Job, *, pulled_tokens: int = 0, pull_wait_s: float = WAIT_S
) -> list[StepOutput]:
    """Prompt and first token on one node, the rest on the other, as the scheduler has it.

    ``pulled_tokens``: of the prompt, which the prefill node is to have from the decode node.
    """
    decode_job = replace(job, kind=JobKind.DECODE, source=prefill.source, lends=bool(pulled_tokens))
    prefill_job = replace(job, kind=JobKind.PREFILL)
    if pulled_tokens:
        pull = Pull(source=decode.source, token_count=pulled_tokens, wait_s=pull_wait_s)
        prefill_job = replace(prefill_job, pull=pull)
    decoding = asyncio.create_task(outputs_of(decode, decode_job))
    try:
        (first,) = await outputs_of(prefill, prefill_job)
        if first.finish_reason is not None and first.finish_reason.value == "stop":
            prefill.engine.drop_source(job.key, "the first token ended the output")
            return [first]
        if job.sampling.max_tokens == 1:
            prefill.engine.drop_source(job.key, "one token was wanted")
            return [first]
        decode.engine.first_tokens(job.key, {0: first.token_ids[0]})
        return [replace(first, finish_reason=None), *await decoding]
    finally:
        decoding.cancel()
        await asyncio.wait([decoding])
        prefill.engine.forget(job.key)

"""Both transfer protocols against a hostile world: random orders, losses, closes, dead lines.

A little world with one source and one target. Control messages are lost, doubled and reordered.
In-band messages keep their order per nonce, as UCX keeps it, and a receive into a block may write
at any moment between its posting and its final status. Over shared memory a chunk is copied in the
moment in which it is announced, out of a slot that the source may have used again if it has lost
the connection; then its header says so, whether chunks have digests or not. Endpoints are closed by
either side at random, and the other side notices later.

Checked after every action: nothing writes to a block that its transfer has given back; nothing
reads a source block after its release. At the end: every opened key has had exactly one terminal
event, what was reported complete holds the right bytes, and both protocols are idle.
"""

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.identity import NodeIdentity
from pdd.transfer.protocol_source import SourceProtocol
from pdd.transfer.protocol_target import TargetProtocol
from pdd.transfer.protocol_values import (
    FOR_SOURCE,
    ChunkReceived,
    ChunkSent,
    ClosePeer,
    Connect,
    ControlReceived,
    Count,
    DiscardChunk,
    Drop,
    Emit,
    Land,
    PeerLost,
    PostRecord,
    ReceiveChunk,
    RecordReceived,
    SendChunk,
    SendControl,
    SendRecord,
    SourceAborted,
    SourceAppended,
    SourceOpened,
    TargetCancelRequested,
    TargetOpened,
    Ticked,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import PeerId, SourceReleased, TargetCompleted, TargetFailed
from pdd.wire.record import Record, RecordKind, pack_record

SOURCE = NodeIdentity(name="prefill-0", uuid="source", boot_epoch=1)
TARGET = NodeIdentity(name="decode-0", uuid="target", boot_epoch=1)
SOURCE_PEER = PeerId(uuid="source", boot_epoch=1, rank=0)
TARGET_PEER = PeerId(uuid="target", boot_epoch=1, rank=0)
BLOCK_BYTES = 10
POOL_BLOCKS = 60


def digest_of(values):
    return (hash(tuple(values)) & 0xFFFFFFFF) | 1


class Side:
    """One node's endpoint to the other."""

    def __init__(self):
        self.up = False
        self.doomed = False  # the other side has closed; we have not noticed


class World:
    def __init__(self, seed, *, lane, digest=True):
        """``lane``: how chunks come: "staged", "direct" or "shared"."""
        self.shared = lane == "shared"
        self.slots = {}  # generation -> values in shared memory, until the send is final
        self.generations = {}  # (nonce, serial) -> generation; lanes can begin anew
        self.generation = 0
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.settings = TransferSettings(
            digest=digest,
            chunk_bytes=2 * BLOCK_BYTES,
            window_chunks=3,
            max_pending_grants=3,
        )
        self.target = TargetProtocol(
            identity=TARGET,
            address=b"target",
            block_bytes=lambda peer: BLOCK_BYTES,
            settings=self.settings,
            connection_of=lambda peer: 0,
            lands_direct=lambda peer, record, ids: lane == "direct",
            new_nonce=lambda: self.random.randrange(1, 1 << 40),
        )
        self.source = SourceProtocol(
            identity=SOURCE, block_bytes=lambda peer: BLOCK_BYTES, settings=self.settings
        )
        self.control = []  # (to_source, message)
        self.wire = defaultdict(list)  # nonce -> [Record | ("data", serial, values)] not delivered
        self.unexpected = defaultdict(list)  # nonce -> records that arrived before their receive
        self.arrived = {}  # (nonce, serial) -> values, sender waits
        self.source_end, self.target_end = Side(), Side()
        self.sends = {}  # (nonce, serial) -> (key, size); outstanding at the source
        self.final_sends = []
        self.posted_records = []  # nonces
        self.receives = {}  # (nonce, serial) -> [effect, "direct" | "staged" | "discard", values]
        self.staged = {}  # (nonce, serial) -> (block_ids, values), until Land or Drop
        self.records = {}
        self.pool = [None] * POOL_BLOCKS
        self.owner = {}  # target block -> key, while its transfer is open
        self.free = list(range(POOL_BLOCKS))
        self.blocks_of = {}
        self.wanted = {}
        self.source_open = {}  # key -> [first index, prompt blocks, appended]
        self.terminal = Counter()
        self.completed = set()
        self.opened = Counter()
        self.pairs = 0
        self.flips = 0
        self.overtaken = 0
        self.partial = 0  # transfers of which some blocks have come
        self.quiet = False  # no more faults

    # ------------------------------------------------------------------ protocols and effects

    def give_source(self, event):
        self.obey(self.source.step(event, now_s=self.now_s), at_source=True)

    def give_target(self, event):
        self.obey(self.target.step(event, now_s=self.now_s), at_source=False)

    def obey(self, effects, *, at_source):
        later = []
        for effect in effects:
            match effect:
                case Connect():
                    side, other = self.sides(at_source)
                    if not side.up:
                        side.up, side.doomed = True, False
                        if other.up and not other.doomed and other is self.source_end:
                            pass  # pairs with what is there
                case ClosePeer():
                    later.append(at_source)
                case SendControl():
                    self.control.append((not at_source, effect.message))
                case SendRecord():
                    self.put(effect.record.nonce, effect.record)
                case SendChunk():
                    self.send_chunk(effect)
                case PostRecord():
                    assert not at_source
                    if self.target_end.up:
                        self.posted_records.append(effect.nonce)
                    self.match(effect.nonce)
                case ReceiveChunk():
                    kind = "direct" if effect.direct else "staged"
                    if self.shared:
                        kind = "copied"
                        self.copy_shared(effect)
                    self.receives[effect.record.nonce, effect.record.serial] = [effect, kind]
                    self.records[effect.record.nonce, effect.record.serial] = effect.record
                case DiscardChunk():
                    self.receives[effect.record.nonce, effect.record.serial] = [effect, "discard"]
                    if self.shared:
                        self.arrived[effect.record.nonce, effect.record.serial] = []
                case Land():
                    landed = self.staged.pop((effect.nonce, effect.serial), None)
                    if landed is not None:
                        for block, value in zip(*landed, strict=True):
                            self.write(block, value, effect.nonce)
                case Drop():
                    self.staged.pop((effect.nonce, effect.serial), None)
                case Emit():
                    self.on_event(effect.event)
                case Count():
                    pass
                case _:
                    raise AssertionError(effect)
        for who in later:
            self.close(at_source=who)

    def sides(self, at_source):
        ends = (self.source_end, self.target_end)
        return ends if at_source else ends[::-1]

    def write(self, block, value, nonce):
        key = self.owner.get(block)
        assert key is not None, f"late write to block {block} that nobody has reserved"
        assert value is None or value[0] == key, f"block {block} of {key} got {value}"
        self.pool[block] = value

    def copy_shared(self, effect):
        """What comes later is the final status only."""
        place = effect.record.nonce, effect.record.serial
        values = self.slots.get(effect.record.shared_generation)
        if values is None:  # used again meanwhile: wrong bytes, and the header says so
            self.overtaken += 1
            values = [None] * len(effect.block_ids)
        for block, value in zip(effect.block_ids, values, strict=True):
            self.write(block, value, place[0])
        self.arrived[place] = values

    def on_event(self, event):
        side = "source" if isinstance(event, SourceReleased) else "target"
        self.terminal[side, event.key] += 1
        assert self.terminal[side, event.key] <= self.opened[side, event.key], event
        if side == "source":
            reading = [k for k, (key, _) in self.sends.items() if key == event.key]
            assert not reading, f"{event} while {reading} are being sent"
            self.source_open.pop(event.key, None)
            return
        blocks = self.blocks_of.pop(event.key)
        if isinstance(event, TargetCompleted):
            self.completed.add(event.key)
            first, count = self.wanted[event.key]
            expected = [(event.key, index) for index in range(first, first + count)]
            assert [self.pool[block] for block in blocks] == expected
            assert event.transferred_bytes == count * BLOCK_BYTES
        elif isinstance(event, TargetFailed):
            self.partial += 0 < len(event.bad_indices) < len(blocks)
            for index, block in enumerate(blocks, self.wanted[event.key][0]):
                assert index in event.bad_indices or self.pool[block] == (event.key, index)
        for block in blocks:  # reused at once, by whoever comes next
            del self.owner[block]
            self.free.append(block)

    # ------------------------------------------------------------------ the wire

    def put(self, nonce, item):
        """In-band message; lost when the endpoint is not there or its partner is closed."""
        if self.source_end.up and not self.source_end.doomed:
            self.wire[nonce].append(item)

    def send_chunk(self, effect):
        key = next(k for k, (_, prompt, _) in self.source_open.items() if self.reads(k, effect))
        values = [
            (key, i) for i in range(effect.first_index, effect.first_index + len(effect.block_ids))
        ]
        size = len(values) * BLOCK_BYTES
        digest = digest_of(values)
        if self.settings.digest and not self.quiet and self.random.random() < 0.1:
            self.flips += 1
            values = [(key, "damaged")] * len(values)
        self.sends[effect.nonce, effect.serial] = (key, size)
        record = Record(
            kind=RecordKind.CHUNK,
            nonce=effect.nonce,
            serial=effect.serial,
            first_index=effect.first_index,
            block_count=len(values),
            first_piece=effect.serial * 8,
            size_bytes=size,
            piece_bytes=size,
            digest=digest if self.settings.digest else 0,
            shared_generation=self.next_generation() if self.shared else 0,
            shared_page=int(self.shared),
        )
        self.put(effect.nonce, record)
        if self.shared:
            self.slots[record.shared_generation] = values
            self.generations[effect.nonce, effect.serial] = record.shared_generation
        else:
            self.put(effect.nonce, ("data", effect.serial, values))
        if not self.source_end.up:
            self.final_sends.append((effect.nonce, effect.serial, False))

    def next_generation(self):
        self.generation += 2
        return self.generation

    def reads(self, key, effect):
        """Source block ids are unique per key in this world."""
        return effect.block_ids[0] // 100 == self.source_open[key][0]

    def deliver_in_band(self):
        nonces = [nonce for nonce, items in self.wire.items() if items]
        if not nonces:
            return False
        nonce = self.random.choice(sorted(nonces))
        item = self.wire[nonce].pop(0)
        if isinstance(item, Record):
            self.unexpected[nonce].append(item)
            self.match(nonce)
        else:
            self.arrived[nonce, item[1]] = item[2]
        return True

    def match(self, nonce):
        while nonce in self.posted_records and self.unexpected[nonce]:
            self.posted_records.remove(nonce)
            record = self.unexpected[nonce].pop(0)
            self.pending_records.append((nonce, pack_record(record)))

    pending_records: list

    def deliver_record(self):
        if not self.pending_records:
            return False
        nonce, data = self.pending_records.pop(0)
        self.give_target(RecordReceived(nonce=nonce, data=data))
        return True

    def partial_write(self):
        """The network writes into a posted receive long before it says so."""
        direct = [
            k for k, (_, kind) in self.receives.items() if kind == "direct" and k in self.arrived
        ]
        if not direct:
            return False
        key = self.random.choice(sorted(direct))
        effect = self.receives[key][0]
        self.write(self.random.choice(effect.block_ids), None, key[0])
        return True

    def finish_receive(self):
        ready = sorted(k for k in self.receives if k in self.arrived)
        if not ready:
            return False
        nonce, serial = self.random.choice(ready)
        effect, kind = self.receives.pop((nonce, serial))
        values = self.arrived.pop((nonce, serial))
        if (nonce, serial) in self.sends:
            self.final_sends.append((nonce, serial, True))
        if kind == "direct":
            for block, value in zip(effect.block_ids, values, strict=True):
                self.write(block, value, nonce)
        elif kind == "staged":
            self.staged[nonce, serial] = (effect.block_ids, values)
        digest = 0 if kind == "discard" else digest_of(values)
        self.give_target(
            ChunkReceived(
                nonce=nonce,
                serial=serial,
                ok=True,
                digest=digest,
                overtaken=kind == "copied" and None in values,
            )
        )
        return True

    def finish_send(self):
        if not self.final_sends:
            return False
        index = self.random.randrange(len(self.final_sends))
        nonce, serial, ok = self.final_sends.pop(index)
        self.slots.pop(self.generations.pop((nonce, serial), None), None)
        if self.sends.pop((nonce, serial), None) is not None:
            self.give_source(ChunkSent(nonce=nonce, serial=serial, size_bytes=BLOCK_BYTES, ok=ok))
        return True

    # ------------------------------------------------------------------ endpoints

    def close(self, *, at_source):
        """Everything on this side becomes final, then PeerLost; the other side notices later."""
        side, other = self.sides(at_source)
        if not side.up:
            return
        side.up = side.doomed = False
        if other.up:
            other.doomed = True
        self.wire.clear()
        if at_source:
            while self.sends:
                (nonce, serial), _ = self.sends.popitem()
                self.give_source(ChunkSent(nonce=nonce, serial=serial, size_bytes=0, ok=False))
            self.final_sends.clear()
            self.slots.clear()
            self.give_source(PeerLost(peer=TARGET_PEER))
            return
        self.unexpected.clear()
        self.arrived.clear()
        self.pending_records, posted = [], self.posted_records
        self.posted_records = []
        for nonce in posted:
            self.give_target(RecordReceived(nonce=nonce, data=None))
        for nonce, serial in list(self.receives):
            del self.receives[nonce, serial]
            self.give_target(ChunkReceived(nonce=nonce, serial=serial, ok=False, digest=0))
        self.give_target(PeerLost(peer=SOURCE_PEER))

    def notice_close(self):
        for at_source in (True, False):
            side, _ = self.sides(at_source)
            if side.up and side.doomed:
                self.close(at_source=at_source)
                return True
        return False

    def close_at_random(self):
        if self.quiet:
            return False
        self.close(at_source=self.random.random() < 0.5)
        return True

    # ------------------------------------------------------------------ control channel, time

    def deliver_control(self):
        if not self.control:
            return False
        index = self.random.randrange(len(self.control))
        to_source, message = self.control[index]
        fate = 1.0 if self.quiet else self.random.random()
        if fate >= 0.1:
            del self.control[index]
        if 0.1 <= fate < 0.2:
            return True  # lost
        assert isinstance(message, FOR_SOURCE) == to_source
        if to_source:
            self.give_source(ControlReceived(peer=TARGET_PEER, message=message))
        else:
            self.give_target(ControlReceived(peer=SOURCE_PEER, message=message))
        return True

    def pass_time(self):
        self.now_s += self.random.choice([0.01, 0.3, 3.0])
        self.give_source(Ticked())
        self.give_target(Ticked())
        return True

    # ------------------------------------------------------------------ users

    def open_both(self):
        number = self.pairs
        if number >= 12:
            return False
        key = f"key-{number}"
        prompt = self.random.randint(1, 9)
        first = self.random.randint(0, prompt)
        count = prompt - first
        if self.random.random() < 0.1:
            count += 1  # more than the source will ever have
        self.pairs += 1
        opens = [lambda: self.open_source(key, number, prompt)]
        opens.append(lambda: self.open_target(key, first, count))
        self.random.shuffle(opens)
        opens[0]()
        self.todo.append(opens[1])
        return True

    def open_source(self, key, number, prompt):
        self.opened["source", key] += 1
        self.source_open[key] = [number, prompt, 0]
        deadline = self.now_s + self.random.choice([2.0, 60.0])
        self.give_source(SourceOpened(key=key, deadline_at_s=deadline))

    def open_target(self, key, first, count):
        if count > len(self.free):
            return
        self.opened["target", key] += 1
        self.random.shuffle(self.free)
        blocks = [self.free.pop() for _ in range(count)]
        self.blocks_of[key] = blocks
        self.wanted[key] = (first, count)
        self.owner.update(dict.fromkeys(blocks, key))
        for block in blocks:
            self.pool[block] = None
        self.give_target(
            TargetOpened(
                key=key,
                peer=SOURCE_PEER,
                first_index=first,
                block_ids=blocks,
                deadline_at_s=self.now_s + self.random.choice([2.0, 60.0]),
                shared=self.shared,
            )
        )

    def do_later(self):
        if not self.todo:
            return False
        self.todo.pop(self.random.randrange(len(self.todo)))()
        return True

    def append(self):
        keys = [k for k, (_, prompt, have) in self.source_open.items() if have < prompt]
        if not keys:
            return False
        key = self.random.choice(keys)
        number, prompt, have = self.source_open[key]
        count = self.random.randint(1, prompt - have)
        self.source_open[key][2] = have + count
        self.give_source(
            SourceAppended(
                key=key,
                first_index=have,
                block_ids=[number * 100 + i for i in range(have, have + count)],
                last=have + count == prompt,
            )
        )
        return True

    def abort(self):
        if self.source_open and not self.quiet and self.random.random() < 0.3:
            key = self.random.choice(list(self.source_open))
            self.give_source(SourceAborted(key=key, reason="test"))
            return True
        return False

    def cancel(self):
        if self.blocks_of and not self.quiet and self.random.random() < 0.3:
            self.give_target(TargetCancelRequested(key=self.random.choice(list(self.blocks_of))))
            return True
        return False

    # ------------------------------------------------------------------ runs

    def run(self, actions):
        self.todo = []
        self.pending_records = []
        common = [
            self.deliver_control,
            self.deliver_in_band,
            self.deliver_record,
            self.partial_write,
            self.finish_receive,
            self.finish_send,
            self.append,
        ]
        rare = [self.close_at_random, self.abort, self.cancel, self.pass_time, self.notice_close]
        fault_rate = self.random.choice([0.0, 0.01, 0.05, 0.2])
        for _ in range(actions):
            pick = self.random.random()
            if pick < 0.05:
                self.open_both()
            elif pick < 0.1:
                self.do_later()
            elif pick < 0.1 + fault_rate:
                self.random.choice(rare)()
            else:
                self.random.shuffle(common)
                any(action() for action in common)
        self.settle(common)

    def settle(self, common):
        """No more faults; everything must end."""
        self.quiet = True
        while self.todo:
            self.do_later()
        for _ in range(400):
            moved = True
            while moved:
                moved = any([action() for action in common] + [self.notice_close()])
            if self.source.idle and self.target.idle and not self.open_keys():
                break
            self.pass_time()
        assert not self.open_keys()
        assert self.source.idle
        assert self.target.idle
        assert not self.staged
        assert not self.owner

    def open_keys(self):
        return [k for k, n in self.opened.items() if self.terminal[k] != n]


LANES = ["staged", "direct", "shared"]


@given(seed=st.integers(0, 2**32), lane=st.sampled_from(LANES), digest=st.booleans())
def test_every_transfer_ends_once_and_no_write_comes_late(seed, lane, digest):
    World(seed, lane=lane, digest=digest).run(300)


@pytest.mark.parametrize("digest", [True, False], ids=["digests", "none"])
@pytest.mark.parametrize("lane", LANES)
def test_most_transfers_of_the_random_worlds_do_complete(lane, digest):
    """The test above would be empty if the faults left nothing to complete."""
    count = 150 if lane == "shared" else 30  # slots are seldom overtaken
    worlds = [World(seed, lane=lane, digest=digest) for seed in range(count)]
    for world in worlds:
        world.run(300)
    completed = sum(len(world.completed) for world in worlds)
    opened = sum(n for w in worlds for (side, _), n in w.opened.items() if side == "target")
    flips = sum(world.flips for world in worlds)
    overtaken = sum(world.overtaken for world in worlds)
    partial = sum(world.partial for world in worlds)
    print(f"{completed} of {opened} complete, {partial} in part, {flips} chunks damaged, ", end="")
    print(f"{overtaken} overtaken")
    assert partial > 10
    assert completed > opened // 5
    assert flips > 10 or not digest
    assert overtaken > 2 or lane != "shared"

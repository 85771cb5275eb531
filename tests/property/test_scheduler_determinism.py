"""Equal states give equal decisions, also in another process with another hash seed."""

import os
import subprocess
import sys

TRACE = """
import random, sys
sys.path.insert(0, sys.argv[1])
from pdd.core.frames import Finish, FinishReason
from pdd.core.identity import NodeName, RequestId
from pdd.scheduler.effects import Submit
from pdd.scheduler.events import *
from tests.builders import Cluster, make_identity, make_joined, make_request

rng = random.Random(20)
cluster = Cluster("decode-1", "prefill-1", "decode-0", "prefill-0", queue_request_count_max=20)
jobs = []
for index in range(600):
    match rng.choice(["arrive", "arrive", "first", "ready", "start", "end", "lose", "tick"]):
        case "arrive":
            prompt = rng.choice([20, 200, 600])
            event = RequestArrived(request=make_request(f"r{index}", prompt_token_count=prompt))
        case "tick":
            event = Tick()
        case "lose":
            name = rng.choice(["prefill-0", "prefill-1", "decode-0", "decode-1"])
            if rng.random() < 0.7:
                event = make_joined(name, boot_epoch=index + 2)
            else:
                event = NodeLost(identity=cluster.core.nodes[name].identity, reason="gone")
        case _ if not jobs:
            continue
        case kind:
            job = rng.choice(jobs[-20:])
            fields = {"request_id": job.request.request_id, "generation": job.generation}
            finish = Finish(reason=FinishReason.HANDOVER)
            event = {
                "first": lambda: FirstTokenSampled(
                    **fields, node=job.node, token_id=1, finish=finish
                ),
                "ready": lambda: DecodeReady(**fields),
                "start": lambda: SequenceStarted(**fields),
                "end": lambda: SequenceFinished(**fields, node=job.node, finish=finish),
            }[kind]()
            if kind in ("first",) and job.kind != "prefill":
                continue
            if kind == "start" and job.kind != "local":
                continue
    for effect in cluster.step(event, after_s=0.01):
        print(index, effect)
        if isinstance(effect, Submit):
            jobs.append(effect)
"""


def trace(hash_seed: str) -> str:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return subprocess.run(
        [sys.executable, "-c", TRACE, root],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
    ).stdout


def test_a_history_gives_the_same_effects_under_any_hash_seed() -> None:
    first = trace("1")
    assert first.count("Submit(") > 100
    assert first.count("Complete(") > 10
    assert trace("2") == first

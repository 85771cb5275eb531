"""From pdd's settings to vLLM's arguments: nothing is lost, and vLLM knows every name."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from pdd.transfer.settings import TransferFaults, TransferSettings
from tests.builders import make_identity

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    from pdd.connector.worker_settings import WorkerSettings
    from pdd.engine.vllm_settings import VllmSettings, engine_args

TRANSFER = TransferSettings(faults=TransferFaults(delay_s=2.0))
WORKER = WorkerSettings(
    socket_name="pdd-link-1", secret="s", identity=make_identity("decode-0"), transfer=TRANSFER
)


def make_settings(**changes: Any) -> VllmSettings:
    fields: dict[str, Any] = {
        "model_path": Path("/models/tiny"),
        "served_model_name": "tiny",
        "rpc_dir": Path("/run/pdd"),
        "transfer": TRANSFER,
    }
    return VllmSettings(**{**fields, **changes})


def test_vllm_knows_every_argument() -> None:
    settings = make_settings(
        max_model_len=2048,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        block_size=32,
        kv_cache_bytes=1 << 30,
        cpu_cores=(0, 1),
    )
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert set(engine_args(settings, WORKER, cache_events={})) <= known


def test_what_is_not_set_is_left_to_vllm() -> None:
    args = engine_args(make_settings(), WORKER, cache_events={})
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size"):
        assert name not in args
    assert "kv_cache_memory_bytes" not in args


def test_an_operators_extra_argument_wins_but_not_over_the_transfer() -> None:
    extra = {"max_num_seqs": 3, "kv_transfer_config": {"kv_connector": "Other"}}
    args = engine_args(make_settings(max_num_seqs=8, extra=extra), WORKER, cache_events={})
    assert args["max_num_seqs"] == 3
    assert args["kv_transfer_config"]["kv_connector"] == "PddConnector"


def test_the_worker_half_gets_back_what_the_daemon_wrote() -> None:
    config = KVTransferConfig(
        **engine_args(make_settings(), WORKER, cache_events={})["kv_transfer_config"]
    )
    extra = config.kv_connector_extra_config["pdd"]
    assert WorkerSettings.from_extra_config(extra) == WORKER
    assert config.kv_connector_module_path == "pdd.connector.facade"


def test_serving_never_touches_the_network_and_cores_are_bound() -> None:
    environment = make_settings(cpu_cores=(2, 3)).environment()
    assert environment["HF_HUB_OFFLINE"] == environment["TRANSFORMERS_OFFLINE"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "2,3"
    assert environment["VLLM_RPC_BASE_PATH"] == "/run/pdd"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in make_settings().environment()

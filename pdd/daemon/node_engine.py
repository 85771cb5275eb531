"""Which engine a node runs, made from its configuration.

What an engine imports is imported when it is chosen: vLLM and torch take ten seconds and 600 MB
that a node with the synthetic engine never needs.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from pdd.config.sections import Config, EngineKind, EngineSection, TransferTransport
from pdd.core.errors import ConfigError
from pdd.core.identity import NodeIdentity
from pdd.core.ports import Clock
from pdd.daemon.served_model import served_model
from pdd.engine.port import Engine
from pdd.model.digest import tokenizer_digest
from pdd.transfer.settings import TransferFaults, TransferSettings

if TYPE_CHECKING:
    from pdd.engine.synthetic.settings import SyntheticSettings
    from pdd.engine.vllm_settings import VllmSettings

STEP_LOG_NAME = "steps.jsonl"
_SYNTHETIC_BLOCK_SIZE = 16
_SYNTHETIC_BATCHED_TOKENS = 2048
_SYNTHETIC_SEQS = 256


def make_engine(
    config: Config, *, identity: NodeIdentity, tokenizer: Tokenizer, clock: Clock, rpc_dir: Path
) -> Engine:
    """The engine that ``engine.kind`` names, not started. Call it on the daemon's event loop.

    Raises:
        ConfigError: the settings do not fit this engine.
    """
    if config.engine.kind is EngineKind.SYNTHETIC:
        from pdd.engine.synthetic.engine import SyntheticEngine
        from pdd.engine.synthetic.model import words_of

        settings = synthetic_settings(config)
        return SyntheticEngine(
            settings=settings,
            identity=identity,
            tokenizer=tokenizer,
            words=words_of(
                tokenizer, eos_token_ids=settings.eos_token_ids, size=settings.vocab_size
            ),
            clock=clock,
        )
    from pdd.engine.vllm_engine import VllmEngine

    return VllmEngine(
        settings=vllm_settings(config, rpc_dir),
        identity=identity,
        tokenizer=tokenizer,
        clock=clock,
    )


def load_tokenizer(model: Path) -> Tokenizer:
    """The fast tokenizer of a model folder. Raises ConfigError when it has none."""
    path = model / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"engine.model: {path} is missing; pdd needs a model folder with a fast tokenizer"
        )
    return Tokenizer.from_file(str(path))


def ucx_devices(config: Config) -> str:
    """Networks that UCX may use. Without any it would listen on all, and it checks no secret."""
    return ",".join(config.transfer.devices) or "lo"


def transfer_settings(config: Config) -> TransferSettings:
    """The transfer section, and the faults that concern transfers."""
    transfer, faults = config.transfer, config.faults
    flip, fail = faults.transfer_flip_byte_in_chunk, faults.transfer_fail_chunk
    return TransferSettings(
        digest=transfer.digest,
        shared_memory=transfer.transport is TransferTransport.AUTO,
        pending_grant_timeout_s=transfer.grant_timeout_s,
        faults=TransferFaults(
            delay_s=faults.transfer_delay_s,
            flip_byte_in_chunk=None if flip < 0 else flip,
            fail_chunk=None if fail < 0 else fail,
        ),
    )


def synthetic_settings(config: Config) -> "SyntheticSettings":
    """The engine and synthetic sections; zeros become this engine's defaults."""
    from pdd.engine.synthetic.settings import SyntheticFaults, SyntheticSettings
    from pdd.timing.roofline import Roofline
    from pdd.timing.sheets import DEVICES, MODELS

    engine, synthetic = config.engine, config.synthetic
    model = served_model(engine)
    block_size = engine.block_size or _SYNTHETIC_BLOCK_SIZE
    head_bytes = synthetic.kv_bytes_per_token
    return SyntheticSettings(
        served_model_name=model.name,
        tokenizer_digest=tokenizer_digest(Path(engine.model)),
        model_seed=synthetic.model_seed,
        block_count=_block_count(engine, block_size * _rank_heads(config) * head_bytes),
        block_size=block_size,
        row_bytes=head_bytes,
        kv_head_count=synthetic.kv_heads,
        max_model_len=model.max_model_len,
        max_num_batched_tokens=engine.max_num_batched_tokens or _SYNTHETIC_BATCHED_TOKENS,
        max_num_seqs=engine.max_num_seqs or _SYNTHETIC_SEQS,
        enable_prefix_caching=engine.enable_prefix_caching,
        tensor_parallel_size=engine.tensor_parallel_size,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
        cost=Roofline(
            model=MODELS[synthetic.time_model.value],
            device=DEVICES[synthetic.time_device.value],
            device_count=synthetic.time_device_count,
            scale=synthetic.time_scale,
        ),
        transfer=transfer_settings(config),
        transport=config.transfer.transport.value,
        devices=ucx_devices(config),
        faults=SyntheticFaults(
            step_delay_s=config.faults.step_delay_s,
            crash_at=config.faults.crash_at,
            crash_after_count=config.faults.crash_after_count,
            leak_block_after_jobs=config.faults.leak_block_after_jobs,
        ),
        step_s=synthetic.step_s,
        step_log=config.node.state_dir / STEP_LOG_NAME if synthetic.log_steps else None,
    )


def _rank_heads(config: Config) -> int:
    """KV heads that one rank of the synthetic engine holds."""
    return max(1, config.synthetic.kv_heads // config.engine.tensor_parallel_size)


def _block_count(engine: EngineSection, block_bytes: int) -> int:
    """Blocks in the pool, block 0 included."""
    count = (engine.kv_cache_bytes or 1 << 24) // block_bytes
    if count < 2:
        raise ConfigError(
            f"engine.kv_cache_bytes: {engine.kv_cache_bytes} holds {count} blocks of {block_bytes} "
            f"bytes; one is kept unused, so give at least {2 * block_bytes}"
        )
    return count


def vllm_settings(config: Config, rpc_dir: Path) -> "VllmSettings":
    """The engine section as vLLM's settings."""
    from pdd.engine.vllm_settings import VllmSettings

    engine, transfer = config.engine, config.transfer
    return VllmSettings(
        model_path=Path(engine.model),
        served_model_name=engine.served_model_name,
        dtype=engine.dtype,
        max_model_len=engine.max_model_len,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        block_size=engine.block_size,
        kv_cache_bytes=engine.kv_cache_bytes,
        enable_prefix_caching=engine.enable_prefix_caching,
        enforce_eager=engine.enforce_eager,
        tensor_parallel_size=engine.tensor_parallel_size,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        cpu_cores=config.node.cpu_cores,
        gpus=tuple(map(str, config.node.gpus)),
        rpc_dir=rpc_dir,
        extra=engine.extra,
        transfer=transfer_settings(config),
        transport=transfer.transport.value,
        devices=ucx_devices(config),
        leak_block_after_jobs=config.faults.leak_block_after_jobs,
    )

"""Every key of the configuration, by section: type, default, bounds and meaning.

The text under a key is its documentation: ``config/pdd.toml`` and ``pdd config show`` are made
from it. Units stand last in a key's name; keys that are vLLM's keep vLLM's name. Values are
frozen: what was loaded is what runs.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pdd.config.types import (
    GpuId,
    HostPort,
    HostText,
    ListenAddress,
    NodeNameText,
    OptionalListenAddress,
    PeerAddress,
)
from pdd.core.identity import Role

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class Section(BaseModel):
    """Common behaviour: frozen, unknown keys refused, documentation from the source."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EngineKind(StrEnum):
    """What computes tokens."""

    VLLM = "vllm"
    SYNTHETIC = "synthetic"


class CrashPoint(StrEnum):
    """Points that the synthetic engine passes; see ``faults.crash_at``."""

    NEVER = ""
    PREFILL_CHUNK = "prefill_chunk"  # a prefill job's chunk is computed, its blocks not offered yet
    FIRST_SAMPLE = "first_sample"  # a prefill job's token is sampled and not told to anybody
    TARGET_OPENED = "target_opened"  # a decode job has reserved blocks and asked for them
    LOADED = "loaded"  # a decode job's blocks and first token are here
    SAMPLE = "sample"  # a token of a decode or local job is sampled and not told to anybody


class TransferTransport(StrEnum):
    """Which lanes UCX may choose from."""

    AUTO = "auto"
    TCP = "tcp"
    RDMA = "rdma"


class LogLevel(StrEnum):
    """Least severe level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a log event is written."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class NodeSection(Section):
    """This daemon: who it is, where it keeps its state, what hardware is its own."""

    name: NodeNameText
    """Unique in the cluster. Lower-case letters, digits and dashes."""

    role: Role
    """scheduler, prefill or decode. ``pdd serve --role`` may say it instead."""

    state_dir: Path = Path()
    """Folder for what must survive a restart (identity). Made when missing. If it is not set:
    $STATE_DIRECTORY (systemd sets it), else ~/.local/state/pdd/NAME."""

    schedulers: tuple[PeerAddress, ...] = (HostPort("127.0.0.1", 7070),)
    """gRPC addresses of the schedulers, for prefill and decode nodes."""

    cpu_cores: tuple[Annotated[int, Field(ge=0, le=4095)], ...] = ()
    """Cores for the engine's threads, in builds without a GPU. Empty: all cores that the process
    may use."""

    gpus: tuple[GpuId, ...] = ()
    """GPUs for the engine, index or UUID, as in CUDA_VISIBLE_DEVICES. Empty: those that the
    environment shows."""

    status_interval_s: Annotated[float, Field(ge=0.05, le=60, allow_inf_nan=False)] = 1.0
    """How often a node tells the scheduler its free blocks and running sequences."""

    pin_role: bool = False
    """Keep to role: neither pdd node role nor the role controller gives this node another duty. For
    nodes whose engine is set up for one of them only."""

    drain_timeout_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 3.0
    """How long a stopping scheduler lets running requests finish. What is left then ends with an
    error event. A stopping node hands its requests back at once, for another node to go on."""


class HttpSection(Section):
    """The OpenAI-compatible front door. Scheduler only."""

    listen: ListenAddress = HostPort("127.0.0.1", 8000)
    """host:port. Port 0: the system picks one. Beyond loopback it needs [public_tls]."""

    body_limit_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 8 << 20
    """Longest request body; longer ones get HTTP 413."""

    read_timeout_s: Seconds = 30.0
    """How long a client may take to send the headers of a request, and how long its body; then it
    gets HTTP 408."""

    idle_timeout_s: Seconds = 75.0
    """How long a connection may stay open without a request."""

    cors_origins: tuple[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")], ...] = ()
    """Origins whose web pages may call this server (https://chat.example.org), or "*". Empty: no
    page may."""

    stream_buffer_bytes: Annotated[int, Field(ge=4096, le=1 << 30)] = 1 << 20
    """Unsent output that a slow reader may pile up in its connection; as much again is held back
    behind it. A client that falls further behind, or takes nothing at all for 60 s, is disconnected
    and its request cancelled."""


class ResumeSection(Section):
    """Requests that outlive a client's connection, or a scheduler."""

    grace_s: Seconds = 30.0
    """How long a request with an Idempotency-Key runs on after its last client has left; and, on a
    node, how long any request is held whose scheduler is lost, or that has just ended."""

    memory_s: Seconds = 600.0
    """How long a scheduler keeps a finished request that can be told again: 1000 of them and a
    million tokens at most."""

    wait_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 3.0
    """How long a client waits that continues a request which is not known: its node may be about to
    tell. A scheduler that has just started holds back keys that it does not know as long."""

    sequence_tokens_max: Annotated[int, Field(ge=0, le=1 << 24)] = 4096
    """Tokens that a node generates for one request after the loss of its scheduler. Then it stops
    and frees its blocks; whoever takes the request over has the rest computed anew."""

    tokens_max: Annotated[int, Field(ge=0, le=1 << 30)] = 1_000_000
    """Tokens of prompts and outputs, and log probabilities, that a node holds in all. At the bound
    the oldest that have ended are forgotten; if there are none, the others stop."""


class GrpcSection(Section):
    """The gRPC server of this daemon."""

    listen: ListenAddress = HostPort("127.0.0.1", 0)
    """host:port. Port 0: the system picks one. If it is not set, a scheduler listens on
    127.0.0.1:7070. Beyond loopback it needs [tls]."""

    advertise: HostText = ""
    """Host under which other nodes dial this one, where listen names all addresses (0.0.0.0).
    Empty: the host of listen."""

    public_listen: OptionalListenAddress = None
    """Another port, for clients that have no certificate of the cluster: Inference, health
    checking and reflection, with [public_tls]. Scheduler only. Empty: none."""


class TlsSection(Section):
    """Certificates between schedulers and nodes, made by ``pdd certs``: all three keys or none.
    Without them daemons speak on loopback only. Renewed files are taken without a restart."""

    ca: str = ""
    """File of the cluster's authority, ca.crt."""

    certificate: str = ""
    """File of this daemon's certificate, issued for its name, role and hosts."""

    key: str = ""
    """File of its private key."""


class PublicTlsSection(Section):
    """TLS towards clients, for http.listen and grpc.public_listen. Scheduler only. Empty: plain,
    on loopback only."""

    certificate: str = ""
    """File of a certificate that the clients trust; others of its chain may follow in it."""

    key: str = ""
    """File of its private key."""

    client_ca: str = ""
    """File of an authority. If it is set, clients must show a certificate that it has signed."""


class EngineSection(Section):
    """What computes tokens, and with what. Prefill and decode nodes; the scheduler reads the
    model for its tokeniser. Keys named like vLLM's arguments mean the same."""

    kind: EngineKind = EngineKind.VLLM
    """vllm, or synthetic: no model, real blocks and transfers, modelled step times, random words
    that follow from the blocks' bytes. For load, fault and scale work; see [synthetic]."""

    model: str = ""
    """A local Hugging Face folder. ``pdd up`` puts the folder of the default model here."""

    served_model_name: str = ""
    """Name under which clients ask for it. Empty: the last part of model."""

    dtype: str = "bfloat16"
    """Type of weights and activations, or auto."""

    max_model_len: Annotated[int, Field(ge=0, le=16_777_216)] = 2048
    """Longest sequence, prompt and output together, in tokens. 0: the model's own."""

    max_num_batched_tokens: Annotated[int, Field(ge=0, le=16_777_216)] = 512
    """Most tokens computed in one step; the chunk size of prefill. 0: the engine's default."""

    max_num_seqs: Annotated[int, Field(ge=0, le=65_536)] = 8
    """Most sequences in one step. 0: the engine's default."""

    block_size: Annotated[int, Field(ge=0, le=4096)] = 0
    """Tokens in one KV block, a multiple of 16. 0: the engine's default."""

    kv_cache_bytes: Annotated[int, Field(ge=0, le=1 << 44)] = 512 << 20
    """Size of the KV pool. 0: what gpu_memory_utilization leaves."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.9
    """Fraction of GPU memory that the engine may take. Ignored without a GPU."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs (or CPU processes) that share each layer."""

    enable_prefix_caching: bool = True
    """Reuse the KV blocks of prompts that begin alike."""

    enforce_eager: bool = True
    """Run without compiled graphs. Starts faster; on a GPU, set it to false."""

    start_timeout_s: Seconds = 600.0
    """How long loading the engine may take."""

    extra: dict[str, Any] = {}
    """More arguments for vLLM's AsyncEngineArgs, passed through as they are."""


class SyntheticModel(StrEnum):
    """Whose step times the synthetic engine takes."""

    LLAMA_3_70B = "llama-3-70b"
    LLAMA_3_8B = "llama-3-8b"


class SyntheticDevice(StrEnum):
    """On what."""

    H100 = "h100"
    A100 = "a100"


class SyntheticSection(Section):
    """The synthetic engine; of no meaning for vllm."""

    model_seed: Annotated[int, Field(ge=0, le=1 << 62)] = 0
    """Stands for the weights: nodes with another seed say other words."""

    kv_bytes_per_token: Annotated[int, Field(ge=16, le=1 << 20, multiple_of=16)] = 256
    """KV bytes of one position in one KV head, a multiple of 16."""

    kv_heads: Annotated[int, Field(ge=0, le=1024)] = 0
    """KV heads that the ranks of a node share. Nodes with equal heads exchange blocks, whatever
    their engine.tensor_parallel_size. 0: one for each rank."""

    time_model: SyntheticModel = SyntheticModel.LLAMA_3_70B
    """Model whose step times are taken."""

    time_device: SyntheticDevice = SyntheticDevice.H100
    """Device whose step times are taken."""

    time_device_count: Annotated[int, Field(ge=1, le=64)] = 4
    """Devices that share each layer, for the step times."""

    time_scale: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.1
    """Factor on the modelled times: 1 as modelled, 0 as fast as this machine can."""

    step_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 0.0
    """Time from each step's tokens to the next step's, instead of the modelled one; what a step
    takes to compute counts in it. 0: as modelled."""

    log_steps: bool = False
    """Write when each token was made to steps.jsonl in node.state_dir. For pdd bench gateway."""


class TransferSection(Section):
    """How KV blocks travel between nodes."""

    transport: TransferTransport = TransferTransport.AUTO
    """What blocks travel over. tcp and rdma: that, through UCX. auto: rdma where devices name such
    a device, else tcp; and shared memory between nodes of one host and user."""

    devices: tuple[str, ...] = ()
    """Network devices that UCX may use, for example mlx5_0:1. Empty: loopback only."""

    expect_rdma: bool = False
    """A node that reaches a peer over TCP reports itself degraded. If it is not set: true exactly
    when transport is rdma."""

    floor_gb_per_s: Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)] = 0.0
    """A node that receives from some rank of a peer at less, measured over the latest 64 MiB,
    reports itself degraded. It still serves. 0: no floor."""

    digest: bool = True
    """Check a digest of every chunk at the receiver. Off only for measurements."""

    grant_timeout_s: Seconds = 10.0
    """How long a ticket waits at a prefill node that does not know its request yet."""

    deadline_s: Seconds = 20.0
    """How long after the first token blocks may still be missing; then the decode node computes
    the prompt itself."""


class FaultsSection(Section):
    """Faults on purpose, for tests. Anything but the defaults is warned about at every start."""

    transfer_delay_s: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 0.0
    """Wait before each transfer's first byte."""

    transfer_flip_byte_in_chunk: Annotated[int, Field(ge=-1, le=1_000_000)] = -1
    """A prefill node damages one byte of the chunk with this number of a transfer, once in its
    life. -1: never."""

    transfer_fail_chunk: Annotated[int, Field(ge=-1, le=1_000_000)] = -1
    """A prefill node damages the chunk with this number of every transfer, each time it sends it.
    -1: never."""

    step_delay_s: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 0.0
    """Added to each step of the synthetic engine."""

    crash_at: CrashPoint = CrashPoint.NEVER
    """Where a node with the synthetic engine kills itself, in its first life: prefill_chunk,
    first_sample, target_opened, loaded or sample. Empty: nowhere."""

    crash_after_count: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """At which passing of crash_at."""

    leak_block_after_jobs: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """A node loses one KV block when so many of its jobs have ended. 0: never."""


class RaftSection(Section):
    """The schedulers that rule a cluster together: one at a time gives places, all take requests.
    Scheduler only. The same on each of them. Empty: one scheduler rules alone."""

    cluster_id: Annotated[str, Field(min_length=1, max_length=63)] = "pdd"
    """Names the group; a replica of another one is refused."""

    replicas: dict[NodeNameText, PeerAddress] = {}
    """Where each scheduler's replica of the log serves, by the scheduler's name, this one included:
    { scheduler-0 = "10.0.0.1:7071", ... }. 3 or 5; they cannot be changed later. Beyond loopback
    they need [tls]."""

    schedulers: dict[NodeNameText, PeerAddress] = {}
    """Where each scheduler's gRPC server is reached, by the same names."""


class SchedulerSection(Section):
    """Admission and membership. Scheduler only."""

    queue_limit_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """Requests that may wait; beyond it clients get HTTP 429 with Retry-After."""

    request_deadline_s: Seconds = 600.0
    """How long a request may take, waiting included. A gRPC client may name less."""

    node_timeout_s: Seconds = 5.0
    """A node that says nothing for this long is lost."""

    decision_memory_s: Seconds = 3600.0
    """How long pdd why can tell how a request was placed."""

    decision_limit_requests: Annotated[int, Field(ge=0, le=1_000_000)] = 20_000
    """Of how many requests; beyond it the oldest are forgotten."""

    directory_limit_blocks: Annotated[int, Field(ge=1, le=1_000_000_000)] = 10_000_000
    """Distinct KV blocks over all nodes of which the scheduler knows who holds them, at up to 64
    bytes each; further ones are not looked for when a request is placed."""


class PolicyFilter(StrEnum):
    """Filters of the placement policy."""

    HEADROOM = "headroom"
    LARGE_SHARE = "large_share"
    INBOUND = "inbound"
    SPILL = "spill"


class PolicyScorer(StrEnum):
    """Scorers of the placement policy."""

    COMPLETION = "completion"
    AFFINITY = "affinity"
    PREFIX = "prefix"
    FREE_KV = "free_kv"
    RUNNING = "running"
    LINK = "link"


Weight = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class PolicySection(Section):
    """How a request's nodes are chosen: filters drop nodes, scorers give each that is left 0 to 1,
    the highest weighted sum wins. Scheduler only. What a node cannot hold is never given to it,
    whatever stands here."""

    prefill_filters: tuple[PolicyFilter, ...] = (PolicyFilter.SPILL,)
    """Of headroom, large_share, inbound and spill, in this order. For prefill nodes."""

    decode_filters: tuple[PolicyFilter, ...] = (
        PolicyFilter.LARGE_SHARE,
        PolicyFilter.HEADROOM,
        PolicyFilter.INBOUND,
        PolicyFilter.SPILL,
    )
    """Likewise, for decode nodes."""

    prefill_scorers: dict[PolicyScorer, Weight] = {
        PolicyScorer.COMPLETION: 1.0,
        PolicyScorer.AFFINITY: 2.0,
    }
    """Weights, 0 to 100: completion (predicted end of the prompt), affinity (the node that has had
    this prefix, conversation or prompt_cache_key), prefix (part of the prompt that it holds),
    free_kv (blocks left after expected growth), running (free sequences), link (time of the
    transfer). What is not named here counts nothing."""

    decode_scorers: dict[PolicyScorer, Weight] = {
        PolicyScorer.PREFIX: 1.0,
        PolicyScorer.FREE_KV: 1.0,
        PolicyScorer.RUNNING: 0.5,
        PolicyScorer.LINK: 0.5,
        PolicyScorer.AFFINITY: 4.0,
    }
    """Likewise, for decode nodes."""

    spill_above_fraction: Fraction = 0.85
    """Load of a node above which the keys that prefer it go elsewhere, until it has room again."""

    affinity_min_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 128
    """Shorter shared prefixes give no preference."""

    prefill_full_s: Seconds = 2.0
    """Prompt work ahead of a prefill node that counts as a full load. Behind more than that of
    prompts no longer than itself one waits at the scheduler, without room on a decode node."""

    headroom_fraction: Fraction = 0.1
    """Part of a decode node's blocks that is left to running requests to grow into."""

    large_request_fraction: Fraction = 0.125
    """A request that takes a larger part of a node's blocks is a large one."""

    large_share_fraction: Fraction = 0.75
    """Part of a decode node's blocks and sequences that large and long requests share."""

    inbound_full_s: Seconds = 2.0
    """A decode node whose link is so far behind what is being computed for it gets no more."""


class PathMode(StrEnum):
    """Where prompts are computed."""

    AUTO = "auto"
    DISAGGREGATED = "disaggregated"
    LOCAL = "local"


class PullMode(StrEnum):
    """Whether prefill nodes have prefixes from decode nodes."""

    AUTO = "auto"
    NEVER = "never"
    ALWAYS = "always"


class PathSection(Section):
    """Where a prompt is computed: on a prefill node, or on the decode node itself. Scheduler
    only."""

    mode: PathMode = PathMode.AUTO
    """auto: by measured speeds; disaggregated: on a prefill node wherever possible, but for
    follow-up turns that add little to what the decode node holds (what pdd up sets); local: never
    there."""

    local_prompt_tokens: Annotated[int, Field(ge=0, le=16_777_216)] = 0
    """Prompts of which at most so many tokens are to compute stay local. 0: as measured."""

    local_stall_s: Seconds = 0.1
    """Longest time for which a local prompt may hold up running output."""

    pull: PullMode = PullMode.AUTO
    """What the decode node holds of a prompt and the prefill node does not (the answers of a
    conversation's earlier turns): auto: it goes over first where that is quicker than computing it,
    by measured speeds; never; always: wherever both nodes can."""


class EstimatesSection(Section):
    """What is believed of the nodes until it is measured. Scheduler only. Wrong values heal within
    a minute of work."""

    prefill_tokens_per_s: Rate = 5000.0
    """Prompt tokens that a node computes."""

    decode_tokens_per_s: Rate = 30.0
    """Output tokens of one sequence."""

    link_bytes_per_s: Rate = 1e9
    """KV bytes from one node to another."""

    handover_s: Seconds = 0.01
    """From a first token to the moment when the decode node can go on."""

    output_tokens: Rate = 256.0
    """Output of a request; what few exceed is reserved for it at first."""

    half_life_s: Seconds = 15.0
    """After so long a measurement counts half."""


class QueueSection(Section):
    """Who goes next of those that wait. Scheduler only."""

    ageing_s: Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)] = 10.0
    """So long a wait counts as much as one step of priority."""

    patience_s: Seconds = 5.0
    """How long the first in turn lets others pass before room is kept for it."""


class RoleMode(StrEnum):
    """What the role controller does."""

    OFF = "off"
    ADVISE = "advise"
    AUTO = "auto"


class RolesSection(Section):
    """Nodes that change between prefill and decode as the mix of requests shifts. Scheduler only.
    Loads, wanted numbers of nodes and late requests are measured and exported in every mode."""

    mode: RoleMode = RoleMode.OFF
    """off: roles change by hand only (pdd node role). advise: the log and pdd node role say what
    would be switched. auto: it is switched."""

    min_prefill_nodes: Annotated[int, Field(ge=0, le=8192)] = 1
    """Prefill nodes that the controller leaves. 0: it may take them all; decode nodes compute
    prompts then."""

    min_decode_nodes: Annotated[int, Field(ge=1, le=8192)] = 1
    """Decode nodes that the controller leaves."""

    ttft_objective_s: Seconds = 1.0
    """A request whose first token takes longer is late. Set it to what you promise: the guard goes
    by it."""

    tpot_objective_s: Seconds = 0.1
    """A request whose further tokens take longer, on average, is late."""

    prefill_load_target: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.7
    """Part of the time that prefill nodes are to be busy; above it they are too few."""

    decode_load_target: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.85
    """Part of their blocks and sequences that decode nodes are to use, likewise."""

    window_s: Seconds = 20.0
    """Loads are smoothed over about this time."""

    backlog_horizon_s: Seconds = 10.0
    """Within so long what waits is to be done; a longer backlog counts as more load."""

    gain_fraction: Fraction = 0.2
    """The more pressed pool must be so much less pressed after a switch."""

    sustain_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 10.0
    """A switch must make sense for so long, without a break, before it begins."""

    cooldown_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 60.0
    """Pause after a switch."""

    step_fraction: Fraction = 0.1
    """Of all nodes, so many may change together; one always may."""

    switch_deadline_s: Seconds = 300.0
    """A node that still runs its old work after so long keeps its role. Also by hand."""

    guard_window_s: Seconds = 60.0
    """So long before a switch and after it, requests are compared."""

    guard_loss_fraction: Fraction = 0.1
    """A switch after which so many more are late, by the role that gave a node, is undone."""

    guard_min_requests: Annotated[int, Field(ge=1, le=10_000)] = 20
    """Fewer requests say nothing."""

    guard_rest_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 300.0
    """So long no switch goes the way of one that was undone."""


class LogSection(Section):
    """Log events, on stderr."""

    level: LogLevel = LogLevel.INFO
    """debug, info, warning or error."""

    format: LogFormat = LogFormat.AUTO
    """json, console, or auto: console on a terminal, else json."""


class Config(Section):
    """All sections. ``pdd.config.load.load_config`` is the door; built in code it is not checked
    for relations between keys. A dot in a section's name is an underscore here."""

    model_config = ConfigDict(populate_by_name=True)

    node: NodeSection
    http: HttpSection = HttpSection()
    resume: ResumeSection = ResumeSection()
    grpc: GrpcSection = GrpcSection()
    tls: TlsSection = TlsSection()
    public_tls: PublicTlsSection = PublicTlsSection()
    engine: EngineSection = EngineSection()
    synthetic: SyntheticSection = SyntheticSection()
    transfer: TransferSection = TransferSection()
    faults: FaultsSection = FaultsSection()
    raft: RaftSection = RaftSection()
    scheduler: SchedulerSection = SchedulerSection()
    scheduler_policy: PolicySection = Field(default=PolicySection(), alias="scheduler.policy")
    scheduler_path: PathSection = Field(default=PathSection(), alias="scheduler.path")
    scheduler_estimates: EstimatesSection = Field(
        default=EstimatesSection(), alias="scheduler.estimates"
    )
    scheduler_queue: QueueSection = Field(default=QueueSection(), alias="scheduler.queue")
    roles: RolesSection = RolesSection()
    log: LogSection = LogSection()

"""Environment variables for UCX: to be set before the process that imports ucxx starts.

Measured on loopback with ucxx 0.52 / UCX 1.21: 512 KiB TCP segments take one stream from 1.2 to
more than 5 GB/s. With ``put_zcopy`` as its rendezvous UCX reckons that over TCP everything is sent
faster without asking, whatever its size (``UCX_PROTO_INFO=y`` tells). Left to itself it would take
rendezvous by active messages from 8 KiB on: 0.49 s of CPU per GB instead of 0.67, but a send whose
receive is never posted stays, and only closing the connection ends it. RDMA and GPU memory have
rendezvous (``connection_numbers`` makes a resume right under it, too); all tests of the engine run
both ways (``tests/cluster/transfer/test_rendezvous.py``).
"""

_COMMON = {
    "UCX_DEBUG_SIGNO": "0",  # else UCX installs a SIGHUP handler
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_LOG_FILE": "stderr",  # default standard output, where results belong
    "UCX_KEEPALIVE_INTERVAL": "3s",  # default 20 s
    "UCX_RCACHE_MAX_UNRELEASED": "1024",  # default inf: registrations pile up for ever
}
_TCP = {
    "UCX_TCP_TX_SEG_SIZE": "512k",
    "UCX_TCP_RX_SEG_SIZE": "512k",
    "UCX_TCP_KEEPIDLE": "3s",
    "UCX_TCP_KEEPINTVL": "1s",
    # A connect that fails inside the making of an endpoint (the peer dies that very moment) leaves
    # it with freed memory in UCX 1.21; a connect in the background fails where it is handled.
    "UCX_TCP_CONN_NB": "y",
}


def ucx_environment(*, transport: str = "auto", devices: str | None) -> dict[str, str]:
    """Variables for one engine's processes.

    Args:
        transport: ``tcp`` (CPU machines and the loopback), ``rdma`` (GPU nodes: rc, CUDA copies
            and cuda_ipc; needs a UCX built with verbs, not run yet), or ``auto``: ``rdma`` when
            ``devices`` names an RDMA device (``mlx5_0:1``), else ``tcp``.
        devices: comma-separated UCX device names to which traffic is restricted (``lo``,
            ``eth0``, ``mlx5_0:1``); None leaves the choice to UCX, which then may use any network.
    Raises:
        ValueError: an unknown transport.
    """
    chosen = transport
    if transport == "auto":
        chosen = "rdma" if devices and ":" in devices else "tcp"
    environment = dict(_COMMON)
    match chosen:
        case "tcp":
            environment |= _TCP
            environment |= {"UCX_TLS": "tcp", "UCX_RNDV_SCHEME": "put_zcopy"}
        case "rdma":
            # The scheme is left to UCX: with GPU memory get_zcopy and put_zcopy are both direct.
            environment |= {
                "UCX_TLS": "rc,cuda_copy,cuda_ipc,tcp",
                "UCX_IB_GPU_DIRECT_RDMA": "yes",
                "RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY": "true",
            }
            environment |= _TCP
        case _:
            raise ValueError(f"transport {transport!r} is none of auto, tcp, rdma")
    if devices:
        environment["UCX_NET_DEVICES"] = devices
    return environment

import subprocess
import sys

import pytest

from pdd.transfer.environment import ucx_environment


def test_the_loopback_gets_large_tcp_segments():
    environment = ucx_environment(transport="auto", devices="lo")
    assert environment["UCX_TLS"] == "tcp"
    assert environment["UCX_NET_DEVICES"] == "lo"
    assert environment["UCX_TCP_CONN_NB"] == "y"
    assert environment["UCX_TCP_TX_SEG_SIZE"] == environment["UCX_TCP_RX_SEG_SIZE"] == "512k"


def test_an_rdma_device_asks_for_the_systems_ucx():
    environment = ucx_environment(transport="auto", devices="mlx5_0:1")
    assert environment["UCX_TLS"].startswith("rc,cuda")
    assert environment["RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY"] == "true"
    assert "UCX_RNDV_SCHEME" not in environment


def test_an_unknown_transport_is_refused():
    with pytest.raises(ValueError, match="'ib'"):
        ucx_environment(transport="ib", devices=None)


def test_importing_the_engine_does_not_load_ucx():
    code = "import sys, pdd.transfer.engine, pdd.transfer.environment; print('ucxx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

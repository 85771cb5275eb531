"""A device that is not there is told before anything is loaded."""

import pytest

from pdd.core.errors import ConfigError
from pdd.transfer.devices import check_devices, device_names


@pytest.fixture
def root(tmp_path):
    for folder in ("net/lo", "net/eth0", "infiniband/mlx5_0/ports/1", "infiniband/mlx5_1/ports/1"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_devices_have_the_names_that_ucx_gives_them(root):
    assert device_names(root) == ("eth0", "lo", "mlx5_0:1", "mlx5_1:1")


@pytest.mark.parametrize("device", ["eth7", "mlx5_0", "mlx5_0:2", ""])
def test_an_absent_device_is_refused_with_key_value_and_what_is_there(root, device):
    with pytest.raises(ConfigError) as refused:
        check_devices(["lo", device], root=root)
    assert str(refused.value) == (
        f"transfer.devices names {device!r}, which this machine does not have; it has"
        " eth0, lo, mlx5_0:1, mlx5_1:1"
    )


def test_what_is_there_and_what_only_ucx_can_judge_is_accepted(root):
    check_devices([], root=root)
    check_devices(["eth0", "mlx5_1:1", "mlx5_*", "all"], root=root)


def test_this_machine_has_a_loopback():
    check_devices(["lo"])

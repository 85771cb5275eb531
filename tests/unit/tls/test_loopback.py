"""Where plain connections are allowed."""

import pytest

from pdd.core.errors import ConfigError
from pdd.tls.loopback import refuse_plain_beyond_loopback


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_plain_addresses_on_loopback_are_taken(address: str) -> None:
    refuse_plain_beyond_loopback([address], key="grpc.listen")


@pytest.mark.parametrize("address", ["10.0.0.1:1", "0.0.0.0:1", "[::]:1", "localhost.org:1", ":1"])
def test_plain_addresses_elsewhere_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^grpc\.listen: .* is not a loopback address"):
        refuse_plain_beyond_loopback(["127.0.0.1:1", address], key="grpc.listen")


def test_among_replicas_the_name_localhost_is_no_address() -> None:
    with pytest.raises(ConfigError, match="raft: localhost:1"):
        refuse_plain_beyond_loopback(["localhost:1"], key="raft", is_localhost_taken=False)

"""Sources, precedence, and every fault at once with its origin."""

from pathlib import Path

import pytest

from pdd.config.load import load_config
from pdd.config.sections import Config, LogLevel
from pdd.config.sources import Flag, parse_set
from pdd.core.errors import ConfigError
from pdd.core.identity import Role

NODE = '[node]\nname = "decode-0"\nrole = "decode"\n'


@pytest.fixture
def file(tmp_path):
    """Write a configuration and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "node.toml"
        path.write_text(text)
        return path

    return write


def faults(path: Path | None, environment=None, flags=(), role=None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, environment=environment or {}, flags=flags, role=role)
    return str(caught.value).splitlines()


def test_flags_win_over_environment_over_file_over_defaults(file):
    path = file(NODE + "[engine]\nmax_num_seqs = 1\nmax_model_len = 11\nblock_size = 16\n")
    loaded = load_config(
        path,
        environment={"PDD_ENGINE__MAX_NUM_SEQS": "2", "PDD_ENGINE__MAX_MODEL_LEN": "22"},
        flags=[Flag(name="engine.max_num_seqs", text="3", spelling="--max-num-seqs")],
    )
    engine = loaded.config.engine
    assert (engine.max_num_seqs, engine.max_model_len, engine.block_size) == (3, 22, 16)
    assert engine.max_num_batched_tokens == 512
    assert loaded.origin("engine.max_num_seqs") == "--max-num-seqs"
    assert loaded.origin("engine.max_model_len") == "$PDD_ENGINE__MAX_MODEL_LEN"
    assert loaded.origin("engine.block_size") == str(path)
    assert loaded.origin("engine.max_num_batched_tokens") == "default"


def test_the_last_of_two_flags_wins():
    presets = [parse_set(f"engine.max_num_seqs={n}") for n in (4, 5)]
    names = [parse_set("node.name=a"), parse_set("node.role=decode")]
    config = load_config(None, environment={}, flags=names + presets).config
    assert config.engine.max_num_seqs == 5


def test_values_of_every_kind_can_come_from_the_environment(file):
    config = load_config(
        file(NODE),
        environment={
            "PDD_NODE__CPU_CORES": "0, 3",
            "PDD_NODE__GPUS": '["0", "GPU-1f"]',
            "PDD_NODE__SCHEDULERS": "127.0.0.1:1,[::1]:2",
            "PDD_NODE__STATE_DIR": "/somewhere",
            "PDD_TRANSFER__DIGEST": "false",
            "PDD_TRANSFER__DEADLINE_S": "12.5",
            "PDD_LOG__LEVEL": "debug",
            "PDD_ENGINE__EXTRA": '{"seed": 7}',
        },
    ).config
    assert config.node.cpu_cores == (0, 3)
    assert config.node.gpus == ("0", "GPU-1f")
    assert [str(address) for address in config.node.schedulers] == ["127.0.0.1:1", "[::1]:2"]
    assert config.node.state_dir == Path("/somewhere")
    assert config.transfer.digest is False
    assert config.transfer.deadline_s == 12.5
    assert config.log.level is LogLevel.DEBUG
    assert config.engine.extra == {"seed": 7}


def test_engine_extra_is_merged_over_the_sources(file):
    config = load_config(
        file(NODE + '[engine]\nextra = { seed = 1, quantization = "fp8" }\n'),
        environment={},
        flags=[parse_set("engine.extra.seed=2"), parse_set("engine.extra.load_format=dummy")],
    ).config
    assert config.engine.extra == {"seed": 2, "quantization": "fp8", "load_format": "dummy"}


def test_all_faults_are_named_at_once_each_with_its_origin(file):
    path = file(
        '[node]\nrole = "decode"\nnmae = "x"\n'
        "[engine]\nmax_num_seqs = -1\nblock_size = 20\n"
        "[gprc]\nx = 1\n"
    )
    found = faults(
        path,
        {"PDD_ENGINE__MAX_NUM_SEQS": "many", "PDD_LOG__LEVLE": "info"},
        [parse_set("http.body_limit_bytes=1")],
    )
    assert found == [
        f"{path}: unknown key in [node]: 'nmae'; did you mean 'name'?",
        f"{path}: unknown section 'gprc'; did you mean 'grpc'?",
        "$PDD_LOG__LEVLE: unknown key in [log]: 'levle'; did you mean 'level'?",
        f"{path}: engine.max_num_seqs: Input should be greater than or equal to 0 (got -1)",
        "$PDD_ENGINE__MAX_NUM_SEQS: engine.max_num_seqs: Input should be a valid integer, unable "
        "to parse string as an integer (got 'many')",
        "--set http.body_limit_bytes: Input should be greater than or equal to 1024 (got '1')",
        f"{path}: node.name: is missing; give the node a name that is unique in the cluster",
        f"{path}: engine.block_size (20) must be a multiple of 16, or 0",
    ]


def test_a_wrong_value_is_a_fault_even_when_a_better_one_overrides_it(file):
    path = file(NODE + "[engine]\nmax_num_seqs = -1\n")
    assert len(faults(path, {"PDD_ENGINE__MAX_NUM_SEQS": "4"})) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[node\n", "Expected ']'"),
        ("node = 1\n" + NODE.replace("[node]", "[http]"), "node is a section; write [node]"),
    ],
)
def test_a_file_that_is_not_what_it_should_be(file, text, complaint):
    assert complaint in faults(file(text))[0]


def test_a_missing_file_is_one_fault_not_one_per_key(tmp_path):
    path = tmp_path / "none.toml"
    assert faults(path) == [f"{path}: No such file or directory"]


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "node.toml"
    path.write_bytes(b'[node]\nname = "\xff"\n')
    assert faults(path) == [f"{path}: is not UTF-8 text at byte 15"]


@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "10.1.2.3:80", "example.org:80"])
@pytest.mark.parametrize("key", ["http.listen", "grpc.listen"])
def test_plain_tcp_is_refused_outside_loopback_by_name(file, address, key):
    (fault,) = faults(file(NODE), flags=[parse_set(f"{key}={address}")])
    assert fault.startswith(f"--set {key}: ")
    assert f"{address} is not a loopback address" in fault
    assert ("[public_tls]" if key == "http.listen" else "pdd certs init") in fault


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.9.9.9:80", "[::1]:80", "localhost:80"])
def test_loopback_is_accepted_and_written_as_it_was(file, address):
    config = load_config(
        file(NODE), environment={}, flags=[parse_set(f"grpc.listen={address}")]
    ).config
    assert str(config.grpc.listen) == address


@pytest.mark.parametrize(
    "address", ["", "80", ":80", "host:", "host:x", "::1:80", "[x]:1", "h:70000"]
)
def test_what_is_no_address_is_refused(file, address):
    assert len(faults(file(NODE), flags=[parse_set(f"grpc.listen={address}")])) == 1


def test_the_role_flag_fills_a_gap_and_must_not_contradict(file):
    path = file('[node]\nname = "a"\n')
    assert load_config(path, environment={}, role=Role.PREFILL).config.node.role is Role.PREFILL
    path = file(NODE)
    assert load_config(path, environment={}, role=Role.DECODE).config.node.role is Role.DECODE
    assert faults(path, role=Role.PREFILL) == [
        f"--role prefill: {path} says node.role = 'decode'; drop --role or name the file of the "
        "other node"
    ]


@pytest.mark.parametrize(
    ("role", "settings", "complaint"),
    [
        ("decode", ["engine.max_num_batched_tokens=4"], "must be at least engine.max_num_seqs (8)"),
        ("decode", ["engine.block_size=24"], "must be a multiple of 16"),
        ("decode", ["node.schedulers="], "a decode node needs one to join"),
        ("scheduler", ["scheduler.node_timeout_s=2"], "must be at least 3 x"),
        ("scheduler", ["http.listen=127.0.0.1:5", "grpc.listen=127.0.0.1:5"], "are both"),
    ],
)
def test_keys_that_do_not_fit_together(role, settings, complaint):
    names = [parse_set("node.name=a"), parse_set(f"node.role={role}")]
    (fault,) = faults(None, flags=names + [parse_set(text) for text in settings])
    assert fault.startswith(f"--set {settings[-1].partition('=')[0]}: ")
    assert complaint in fault


def test_defaults_that_depend_on_other_keys(file):
    path = file('[node]\nname = "s"\nrole = "scheduler"\n[engine]\nmodel = "/models/smol"\n')
    config = load_config(path, environment={"HOME": "/home/me"}).config
    assert str(config.grpc.listen) == "127.0.0.1:7070"
    assert config.node.state_dir == Path("/home/me/.local/state/pdd/s")
    assert config.engine.served_model_name == "smol"
    config = load_config(path, environment={"STATE_DIRECTORY": "/var/lib/pdd/s"}).config
    assert config.node.state_dir == Path("/var/lib/pdd/s")


def test_variables_that_are_no_settings_are_left_alone(file):
    environment = {"PDD_STATE_DIR": "/x", "PDD_UP_MEMBER": "y", "OTHER__THING": "z"}
    assert isinstance(load_config(file(NODE), environment=environment).config, Config)


@pytest.mark.parametrize("text", ["engine.x", "engine=1", "=1", ".a=1"])
def test_set_has_one_form(text):
    with pytest.raises(ConfigError, match=r"--set section\.key=value"):
        parse_set(text)


def test_a_loaded_configuration_cannot_be_changed(file):
    config = load_config(file(NODE), environment={}).config
    with pytest.raises(ValueError, match="frozen"):
        config.engine.max_num_seqs = 4


def test_rdma_is_expected_exactly_when_it_is_the_transport_unless_said_otherwise(file):
    def expected(text: str, **environment: str) -> bool:
        loaded = load_config(file(NODE + text), environment=environment)
        return loaded.config.transfer.expect_rdma

    assert not expected("")
    assert not expected('[transfer]\ntransport = "auto"\n')
    assert expected('[transfer]\ntransport = "rdma"\n')
    assert expected("", PDD_TRANSFER__TRANSPORT="rdma")
    assert not expected('[transfer]\ntransport = "rdma"\nexpect_rdma = false\n')
    assert expected("[transfer]\nexpect_rdma = true\n")

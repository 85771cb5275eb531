"""The documented example file and the TOML that we write."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.config.load import load_config
from pdd.config.schema import fields_of, sections
from pdd.config.show import example_file, rows
from pdd.config.toml_text import to_toml

EXAMPLE = Path(__file__).parents[3] / "config" / "pdd.toml"


def test_the_example_file_is_what_the_schema_says():
    assert EXAMPLE.read_text() == example_file(), (
        "config/pdd.toml is out of date; run: pdd config example > config/pdd.toml"
    )


def test_the_example_file_loads_and_changes_no_default():
    loaded = load_config(EXAMPLE, environment={"HOME": "/h"})
    text = "[node]\nname = 'decode-0'\nrole = 'decode'\n"
    plain = load_config(None, environment={"HOME": "/h"}, presets=presets(text))
    assert loaded.config == plain.config


def presets(text: str):
    from pdd.config.sources import Setting

    return [
        Setting(section=section, key=key, value=value, origin="test")
        for section, table in tomllib.loads(text).items()
        for key, value in table.items()
    ]


def test_every_key_has_a_documentation():
    missing = [
        f"{section}.{key}"
        for section in sections()
        for key, field in fields_of(section).items()
        if not field.description
    ]
    assert missing == []


def test_rows_tell_value_and_origin():
    loaded = load_config(
        None, environment={"HOME": "/h"}, presets=presets("[node]\nname='a'\nrole='prefill'")
    )
    found = {row.name: row for row in rows(loaded)}
    assert (found["node.role"].value, found["node.role"].origin) == ("prefill", "test")
    assert found["grpc.listen"].value == "127.0.0.1:0"
    assert found["grpc.listen"].origin == "default"
    assert len(found) == sum(len(fields_of(section)) for section in sections())


plain_values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)
keys = st.text(st.characters(exclude_categories=["Cs"]))


@given(table=st.dictionaries(keys, plain_values, max_size=5))
def test_what_is_written_reads_back_the_same(table):
    read = tomllib.loads(to_toml({"section": table})).get("section", {})
    assert read == table


def test_toml_has_no_none():
    with pytest.raises(TypeError, match="no value for None"):
        to_toml({"section": {"key": None}})

from pdd.transfer.benchmark import CASES
from pdd.transfer.benchmark_perftest import parse_perftest

OUTPUT = """
+--------------+--------------+------------------------------+---------------------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |
+--------------+--------------+----------+---------+---------+----------+----------+
     100  923.653  1248.810  1248.810  4003.81  4003.81  801  801
"""


def test_perftests_mib_per_s_become_gb_per_s():
    assert parse_perftest(OUTPUT) == 4.198


def test_output_without_figures_is_no_measurement():
    assert parse_perftest("") is None
    assert parse_perftest("error: connect failed\n") is None


def test_the_cases_have_the_sizes_that_they_are_named_for():
    sizes = {case.name: (case.size_bytes, case.layout) for case in CASES}
    assert sizes["a"] == (671_088_640, "block")
    assert sizes["d"] == (671_088_640, "layer")
    assert sizes["e"] == (128 * 30 * 98_304, "layer")

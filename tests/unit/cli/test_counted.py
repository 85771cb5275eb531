from pdd.cli.counted import counted


def test_one_is_not_several() -> None:
    assert [counted(n, "request") for n in (0, 1, 2)] == ["0 requests", "1 request", "2 requests"]

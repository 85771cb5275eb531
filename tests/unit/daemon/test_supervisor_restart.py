"""When a dead daemon is started again."""

from pdd.daemon.supervisor_restart import RestartBudget


def test_waits_double_and_the_sixth_death_in_a_row_is_the_last():
    budget = RestartBudget()
    assert [budget.died(now_s=t) for t in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]


def test_a_minute_of_health_earns_the_attempts_anew():
    budget = RestartBudget()
    for t in range(5):
        budget.died(now_s=t)
    budget.became_ready(now_s=10.0)
    assert budget.died(now_s=70.0) == 0.5


def test_less_than_a_minute_of_health_earns_nothing():
    budget = RestartBudget()
    for t in range(5):
        budget.died(now_s=t)
    budget.became_ready(now_s=10.0)
    assert budget.died(now_s=69.9) is None


def test_health_of_an_earlier_life_does_not_count_for_a_later_one():
    budget = RestartBudget()
    budget.became_ready(now_s=0.0)
    assert budget.died(now_s=1.0) == 0.5
    assert budget.died(now_s=100.0) == 1.0

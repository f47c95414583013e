"""Eight clients at once, each with its own code and some of them leaving: no answer is another's, and nothing stays."""

from tests.test_benchmarks import run


def test_eight_clients_get_their_own_answers_and_leave_nothing_behind() -> None:
    found = run("clients.py", "--clients", "8", "--seconds", "10")
    assert found["errors"] == []
    assert found["mixed"] == found["changed"] == 0
    assert found["own"] >= 0.5, "a model that copies no code would prove nothing"
    assert found["least_answers"] >= 1
    assert found["left"] >= 1
    assert found["health"] == "ok"
    # A thread of a pool may still have been made; one for each request would be many.
    assert found["threads"][1] <= found["threads"][0] + 2
    assert found["files"][1] <= found["files"][0] + 2
    assert found["memory_growth_mib"] < 100

from __future__ import annotations

from inference.registry.loads import LoadFailures


def test_the_pause_doubles_up_to_a_limit_and_a_success_ends_it():
    now = [0.0]
    failures = LoadFailures(lambda: now[0], 10)
    pauses = []
    for _ in range(7):
        failures.note("m", "why")
        pauses.append(failures.get("m").retry_at - now[0])
        assert failures.is_recent("m")
        now[0] = failures.get("m").retry_at
        assert not failures.is_recent("m")
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    failures.forget("m")
    assert failures.get("m") is None
    failures.note("m", "again")
    assert failures.get("m").retry_at - now[0] == 10

import pytest

from jobs import periodic
from jobs.kinds import JobKind, known_kinds, load_function


@pytest.mark.parametrize("kind", known_kinds(), ids=lambda kind: kind.name)
def test_functions_that_kinds_name_exist(kind: JobKind) -> None:
    assert callable(kind.load_run())
    assert kind.show is None or callable(kind.load_show())


@pytest.mark.parametrize("kind", sorted(periodic._periodic))
def test_functions_that_periodic_jobs_name_exist(kind: str) -> None:
    assert callable(load_function(periodic._periodic[kind].is_due))


def test_a_misspelt_function_is_found_when_it_is_loaded() -> None:
    with pytest.raises(AttributeError):
        load_function("jobs.kinds:no_such_function")
    with pytest.raises(ModuleNotFoundError):
        load_function("jobs.no_such_module:run")

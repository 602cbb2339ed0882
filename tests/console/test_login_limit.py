"""Logins that fail are counted, by address and by user, and refused before the password is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.test import Client

from console.login_limit import LOGIN_LIMIT, PER_USER, WINDOW_S, LoginLimit
from core.runtime import runtime
from openai_api.http.attempts import Attempts
from openai_api.http.client_address import client_network

LOGIN = "/admin/login/"
PASSWORD = "a-walk-in-the-rain"
LIMIT = 3


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def limit(clock: Clock) -> Iterator[LoginLimit]:
    found = LoginLimit(LIMIT, clock)
    runtime.install(LOGIN_LIMIT, found)
    yield found
    runtime.remove(LOGIN_LIMIT)


@pytest.fixture
def ada(db: None) -> User:
    return User.objects.create_user("ada", password=PASSWORD, is_staff=True)


def login(password: str, *, name: str = "ada", address: str = "192.0.2.1"):
    client = Client(headers={"host": "localhost"}, REMOTE_ADDR=address)
    return client.post(f"{LOGIN}?next=/admin/", {"username": name, "password": password})


def test_an_address_is_refused_after_its_failures_also_with_the_right_password(ada: User, clock: Clock):
    for _ in range(LIMIT):
        assert login("wrong").status_code == 200
    with patch("django.contrib.auth.backends.ModelBackend.authenticate") as checked:
        refused = login(PASSWORD)
    assert not checked.called
    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == str(int(WINDOW_S))
    assert "Too many failed logins. Try again in 15 minutes." in refused.content.decode()
    assert login(PASSWORD, address="192.0.2.2").status_code == 302  # somebody else's is free
    clock.now = WINDOW_S + 1
    assert login(PASSWORD).status_code == 302


def test_a_user_is_not_guessed_at_from_many_addresses(ada: User):
    for number in range(PER_USER * LIMIT):
        assert login("wrong", address=f"192.0.2.{number + 1}").status_code == 200
    assert login("wrong", address="198.51.100.1", name="ADA").status_code == 429
    assert login("wrong", address="198.51.100.1", name="bob").status_code == 200


def test_who_logged_in_before_is_not_locked_out_by_others(ada: User):
    assert login(PASSWORD, address="203.0.113.9").status_code == 302
    for number in range(PER_USER * LIMIT):
        login("wrong", address=f"192.0.2.{number + 1}")
    assert login(PASSWORD, address="203.0.113.8").status_code == 429
    assert login(PASSWORD, address="203.0.113.9").status_code == 302


def test_logins_that_succeed_are_not_counted(ada: User):
    assert [login(PASSWORD).status_code for _ in range(2 * LIMIT)] == [302] * (2 * LIMIT)


def test_a_network_of_ipv6_counts_as_one_client():
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff:1") == "2001:db8::/64"
    assert client_network("::ffff:192.0.2.1") == client_network("192.0.2.1") == "192.0.2.1"
    assert client_network(None) == ""


def test_users_who_may_not_come_in_count_as_failures(db: None):
    User.objects.create_user("guest", password=PASSWORD)
    assert [login(PASSWORD, name="guest").status_code for _ in range(LIMIT + 1)] == [200] * LIMIT + [429]


def test_a_flood_of_names_takes_no_memory():
    attempts = Attempts(1, 60.0, max_names=100)
    for number in range(10_000):
        attempts.take(str(number))
    assert len(attempts) == 100
    assert attempts.take("9999") > 0


def test_no_limit():
    attempts = Attempts(0, 60.0)
    assert {attempts.take("a") for _ in range(100)} == {0.0}

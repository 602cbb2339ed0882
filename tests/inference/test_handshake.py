"""Engine processes on other machines connect with a key, and nothing of a peer without one is unpickled."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.engine.stats import EngineStats
from inference.engine_process import handshake
from inference.engine_process.channel import OTHER, Channel, Status
from inference.engine_process.handshake import HandshakeError, Listener, Ticket, connect


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener("127.0.0.1")
    yield listener
    listener.close()


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def test_both_ends_talk_as_over_a_socket_pair(listener: Listener) -> None:
    ticket = listener.expect()
    theirs = Channel(connect(ticket))
    connection = listener.take(ticket, 10)
    assert connection is not None
    ours = Channel(connection)
    try:
        theirs.send(Status(EngineStats("idle", steps=7)))
        assert ours.receive(10) == Status(EngineStats("idle", steps=7))
        theirs.close()
        with pytest.raises(EOFError):
            ours.receive(10)
    finally:
        ours.close()


def test_a_wrong_key_is_refused_and_the_right_one_is_accepted_afterwards(listener: Listener) -> None:
    ticket = listener.expect()
    with pytest.raises((HandshakeError, OSError)):
        connect(replace(ticket, key=bytes(32)))
    with pytest.raises((HandshakeError, OSError)):
        connect(replace(ticket, name=bytes(16)))
    assert listener.take(ticket, 0) is None
    with connect(ticket):
        connection = listener.take(ticket, 10)
        assert connection is not None
        connection.close()


def test_a_key_is_valid_once_and_not_after_it_was_taken_back(listener: Listener) -> None:
    used, forgotten = listener.expect(), listener.expect()
    listener.forget(forgotten)
    with connect(used):
        for ticket in (used, forgotten):
            with pytest.raises((HandshakeError, OSError)):
                connect(ticket)


def test_pickles_of_a_stranger_are_never_read(listener: Listener, tmp_path: Path) -> None:
    ticket = listener.expect()
    bomb = OTHER + pickle.dumps(Bomb(tmp_path / "gone off"))
    framed = len(bomb).to_bytes(4, "big") + bomb
    with socket.create_connection((ticket.host, ticket.port)) as stranger:
        stranger.sendall(ticket.name + bytes(32) + framed + bytes(1000))
        received = b""
        with suppress(ConnectionResetError):  # the server closes it without reading the rest
            while chunk := stranger.recv(1000):
                received += chunk
    assert len(received) == handshake.NONCE_BYTES, "the server proves nothing to it"
    assert not (tmp_path / "gone off").exists()


def test_the_other_end_s_own_proof_sent_back_is_refused(listener: Listener) -> None:
    """A peer without the key can only repeat what it has seen."""
    ticket = listener.expect()
    with connect(ticket):
        pass

    def reflect(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(48)
            connection.sendall(bytes(32))
            connection.sendall(connection.recv(32))

    with socket.create_server(("127.0.0.1", 0)) as impostor:
        thread = threading.Thread(target=reflect, args=(impostor,))
        thread.start()
        with pytest.raises(HandshakeError, match="not proved"):
            connect(Ticket("127.0.0.1", impostor.getsockname()[1], ticket.name, ticket.key))
        thread.join()


def test_strangers_that_send_nothing_keep_nobody_out(listener: Listener) -> None:
    ticket = listener.expect()
    strangers = [socket.create_connection((ticket.host, ticket.port)) for _ in range(handshake.MAX_STRANGERS // 2)]
    with connect(ticket):
        connection = listener.take(ticket, 10)
        assert connection is not None
        connection.close()
    for stranger in strangers:
        stranger.close()


def test_secrets_are_not_shown(listener: Listener) -> None:
    ticket = listener.expect()
    assert ticket.key.hex() not in repr(ticket)
    assert str(ticket.key) not in repr(ticket)

"""Django's PostgreSQL backend over the embedded server. Django finds it through the setting ENGINE."""

from __future__ import annotations

import threading
from typing import Any

from django.db.backends.postgresql import base

from millm_site.database import embedded_postgres

_restart = threading.Lock()


class DatabaseWrapper(base.DatabaseWrapper):
    """Starts the server at the process's first connection, and restarts it if it is no longer running."""

    def get_connection_params(self) -> dict[str, Any]:
        server = embedded_postgres()
        if not server.is_used_here:
            server.ensure_running()
        return super().get_connection_params()

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        if not embedded_postgres().is_up():
            self._restart()
        return super().get_new_connection(conn_params)

    def _restart(self) -> None:
        with _restart:
            if not embedded_postgres().is_up():
                self.close_pool()  # its connections are dead, and it would back off before opening new ones
                embedded_postgres().ensure_running()

"""The Django project: settings, ASGI application, HTTP server, embedded Postgres, commands that serve.

Start with `env` (all settings), `asgi` and `serving` (what a serving process starts and stops).
"""

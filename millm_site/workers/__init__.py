"""Several web processes with one engine: `manage.py serve --workers N`.

The main process has the engine, the registry, jobs and media, and starts the web workers, which serve HTTP. Start with
``supervisor.py``; ``host.py`` is its side of one worker, ``process.py`` the worker.
"""

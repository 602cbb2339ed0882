"""The engine and the models of the main process, as web workers use them over a socket pair.

Start with ``client.py``, the worker's side; ``host.py`` is the main process's, ``link.py`` the connection.
"""

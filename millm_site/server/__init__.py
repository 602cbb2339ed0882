"""daphne with its traps closed (bodies, headers, timeouts, back-pressure, draining).

``limits.py`` the numbers, ``channel.py`` one connection, ``request.py`` one request, ``server.py`` the whole.
Nothing here is imported by processes that do not serve: importing daphne installs Twisted's reactor.
"""

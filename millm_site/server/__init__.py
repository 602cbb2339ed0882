"""The HTTP server: daphne with limits on bodies, headers and times, back-pressure and graceful shutdown.

``limits.py`` has the limits, ``channel.py`` a connection, ``request.py`` a request, and ``server.py`` the server.
Only serving processes import this package, because importing daphne installs Twisted's reactor.
"""

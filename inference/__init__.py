"""Models: registration, loading, the engine that runs them, and the client through which requests reach it.

Start with ``client.py`` (the door to the engine), ``registry/`` (registered and loaded models) and ``text/`` (chat
templates, token ids, tool calls); ``engine/`` computes. ``interventions.py`` and ``captures.py`` are the protocol
between steering and the engine.
"""

"""Models: what is registered, how it is loaded, and the way of a request to the engine and of its events back.

Start with ``client.py`` (the door to the engine), ``registry/`` (registered and loaded models) and ``text/`` (chat
templates, token ids, tool calls); ``engine/`` computes, and ``interventions.py`` and ``captures.py`` are its protocol
with steering.
"""

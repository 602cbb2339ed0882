"""Live updates of pages over a WebSocket.

Start with `connection`; `topics` are what pages can subscribe to.
"""

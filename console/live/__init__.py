"""Live updates of pages over a WebSocket.

Start with `connection`. `topics` has the topics that pages can subscribe to.
"""

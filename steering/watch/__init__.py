"""Watch rules: features and vectors that are monitored, or capped, in every request of a model.

Start with ``watcher`` for the request path; ``services`` saves rules and events.
"""

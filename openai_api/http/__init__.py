"""What every request to /v1 passes through: authentication, limits, parsing, errors and server-sent events.

Start at ``endpoint.py``, which builds the views, and ``call.py``, the state of one request.
"""

"""What people note about features, vectors and requests: comments, and lists in which they save them.

``services.py`` writes, ``pages.py`` has the forms' views and what the pages of these objects include. People's scores
of requests belong to the request log: see ``openai_api/request_log/scores.py``.
"""

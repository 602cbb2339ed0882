"""Console pages of the request log: its list (``search.py``), one request (``admin.py``, ``detail.py``) and replays."""

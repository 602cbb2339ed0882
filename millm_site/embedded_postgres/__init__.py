"""A Django database engine whose server is started by the first connection.

``cluster.py`` owns the server's files and process, ``base.py`` is Django's backend on top of it.
"""

"""The steering studio: edits beside features to add and answers with and without them.

``pages.py`` has the page and what it reads and saves, ``edits.py`` the edits as the page holds them, and ``answers.py``
the requests that steer with them.
"""

"""The ASGI application. Importing it starts the engine: only serving processes do.

``manage.py serve`` and ``manage.py runserver`` run it in our own server (millm_site/server/); plain daphne, uvicorn and
other ASGI servers run it too.
"""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "millm_site.settings")
django.setup(set_prefix=False)

from millm_site.http.asgi_handler import SiteHandler  # noqa: E402 - after setup
from millm_site.serving import serving  # noqa: E402

application = SiteHandler()
serving.start()

"""The echo site as an ASGI application, for servers other than ours."""

import os

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.platform.echo_settings"
django.setup(set_prefix=False)

from millm_site.http.asgi_handler import SiteHandler  # noqa: E402 - after setup

application = SiteHandler()

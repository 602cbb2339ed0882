"""The site's settings with views made for the tests of server and database."""

from millm_site.settings import *  # noqa: F403

ROOT_URLCONF = "tests.platform.echo_urls"

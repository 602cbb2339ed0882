#!/usr/bin/env python
"""Django's command line for miLLM."""

import gc
import os
import sys

from millm_site.options import apply_setting_options


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "millm_site.settings")
    apply_setting_options(sys.argv)
    if sys.argv[1:2] == ["runserver"]:
        os.environ.setdefault("MILLM_AUTH", "loopback")  # as for `make run`: this machine's requests need no key
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is not installed for this Python. Run `make setup`, then use .venv/bin/python manage.py.")
    from audit.origin import acting, command_origin
    from millm_site.embedded_postgres.place import EmbeddedPostgresError

    try:
        with acting(command_origin(sys.argv)):
            execute_from_command_line(sys.argv)
    except EmbeddedPostgresError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        gc.freeze()  # the process ends: no last search through all that was imported


if __name__ == "__main__":
    main()

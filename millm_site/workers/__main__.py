"""``python -m millm_site.workers ORDER``: start :mod:`millm_site.workers.process`, once Django is set up."""

import json
import os
import sys
from importlib import import_module

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "millm_site.settings")
    django.setup(set_prefix=False)
    process = import_module("millm_site.workers.process")
    process.main(process.Order(**json.loads(sys.argv[1])))

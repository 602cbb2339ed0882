"""``python -m inference.engine_process FD``: start :mod:`inference.engine_process.host`, once Django is set up."""

import sys
from importlib import import_module

import django

if __name__ == "__main__":
    django.setup()
    import_module("inference.engine_process.host").main(int(sys.argv[1]))

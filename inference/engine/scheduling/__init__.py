"""Which sequences run in a step, and with how many tokens.

Start with :mod:`~inference.engine.scheduling.scheduler`; :mod:`~inference.engine.scheduling.sequence` is what it
schedules.
"""

"""Background jobs with progress, checkpoints, cancel and retry, run by the threads of serving processes.

Start with `kinds` (how an app declares a job), `services` (enqueue, cancel, retry) and `execution` (one run).
"""

"""Background jobs with progress, checkpoints, cancellation and retries, run by threads of serving processes.

Start with `kinds` (how an app declares a job), `services` (enqueue, cancel, retry) and `execution` (one run).
"""

"""The server's load over time: sampled, kept per minute and hour, drawn on the dashboard.

Start with `sampler`, the thread that takes and stores samples.
"""

"""The server's load over time: sampled, stored per minute and hour, plotted on the dashboard.

Start with `sampler`, the thread that takes and stores samples.
"""

"""The audit log: who changed what, when and why; events are immutable.

Start with `record`, which other apps call inside the transaction of a change.
"""

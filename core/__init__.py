"""Code that several apps share: snapshots, database threads, pagination, ids, storable text.

It has no models and imports no other app. Start with `snapshots` (values cached in the process) and `database`.
"""

"""What several apps share, below all of them: snapshots, database threads, pagination, ids, storable text.

Plain Python and Django without models. Start with `snapshots` (values cached in the process) and `database`.
"""

"""Steering profiles: drafts, publishing, reviews, policies, and their resolution at request time.

Start with ``resolver`` for the request path (from a name to an intervention), ``lifecycle`` for policies and rollback.
"""

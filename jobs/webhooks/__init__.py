"""Webhooks: events of jobs, batches, responses and watch rules, sent to URLs that users register.

Start with `outbox` (how an event is queued with the change that it reports) and `delivery` (one attempt to send it).
"""

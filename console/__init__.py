"""The admin's own pages: dashboard, playground, search, navigation, live updates and load charts.

Start with `pages` (how a page is registered) and `dashboard`.
"""

"""The custom pages of the admin: dashboard, playground, search, navigation, live updates and load charts.

Start with `pages` (how a page is registered) and `dashboard`.
"""

"""The engine in a process of its own (MILLM_ENGINE=process), behind :class:`inference.client.EngineClient`.

``host`` is that process, ``supervisor`` starts and calls it, ``client`` is what the web side sees.
"""

"""Places in a model: a layer, and a site in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

RESID_POST = "resid_post"
_LABEL = re.compile(r"layers\.(\d+)\.(\w+)")


class Site(NamedTuple):
    """A layer and one of ``resid_pre``, ``resid_post``, ``mlp_in``, ``mlp_raw``, ``mlp_out``, ``attn_out``.

    ``str(Site(2))`` is ``layers.2.resid_post``, as in receipts.
    """

    layer: int
    site: str = RESID_POST

    def __str__(self) -> str:
        return f"layers.{self.layer}.{self.site}"


SiteLike = Site | tuple[int, str] | int | str
"""A :class:`Site`, ``(layer, site)``, the number of a layer (its output), or a label ``layers.2.resid_post``."""


def as_site(place: SiteLike) -> Site:
    """Return the site. Raise ValueError for a text that is no label."""
    if isinstance(place, str):
        found = _LABEL.fullmatch(place)
        if found is None:
            raise ValueError(f"A site is written layers.LAYER.SITE, such as layers.2.resid_post, got {place!r}.")
        return Site(int(found[1]), found[2])
    return Site(place) if isinstance(place, int) else Site(*place)


def as_sites(places: SiteLike | Iterable[SiteLike]) -> tuple[Site, ...]:
    """Return the sites of one place, or of several."""
    if isinstance(places, (int, str, Site)):
        return (as_site(places),)
    if isinstance(places, tuple) and len(places) == 2 and isinstance(places[1], str) and isinstance(places[0], int):
        return (Site(places[0], places[1]),)
    return tuple(as_site(place) for place in places)

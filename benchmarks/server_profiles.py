"""Publish profiles for the benchmarks. Runs in the server's project (``manage.py shell``)."""

from __future__ import annotations

from benchmarks.profiles import RULES
from benchmarks.server import profile_name
from inference.models import LanguageModel
from steering import services
from steering.models import Feature
from steering.profiles.drafts import feature_target
from steering.spec.edit import EditSpec


def create_profiles(*, model: str, count: int) -> None:
    """Publish ``count`` profiles that each add RULES different features, in raw units because no scales are known."""
    owner = LanguageModel.objects.get(name=model)
    wanted = Feature.objects.filter(sae__model=owner, index__lt=count * RULES).select_related("sae").order_by("index")
    targets = [feature_target(feature) for feature in wanted]
    for number in range(count):
        mine = targets[number * RULES : (number + 1) * RULES]
        edits = [EditSpec(target, strength=0.1, unit="raw") for target in mine]
        profile = services.create_profile(name=profile_name(number), model=owner, edits=edits)
        services.publish_profile(profile=profile)

"""`manage.py seed_load`: as many rows as asked for, that pages can show, and never among real ones."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from inference.models import LanguageModel
from openai_api.models import ApiKey, RequestLog
from steering.models import SAE, Feature, SteeringProfile

pytestmark = pytest.mark.django_db


def seed(**options: Any) -> str:
    output = StringIO()
    call_command("seed_load", stdout=output, **{"rows": 300, "features": 40, **options})
    return output.getvalue()


def test_rows_and_features_are_made(admin_client: Client):
    assert "Added 300 requests and 40 features" in seed()
    assert (RequestLog.objects.count(), Feature.objects.count()) == (300, 40)
    times = RequestLog.objects.order_by("created_at").values_list("created_at", flat=True)
    assert timezone.now() - times[0] > timedelta(days=29)
    assert RequestLog.objects.values("model").distinct().count() > 3
    assert RequestLog.objects.exclude(error_code="").exists()
    assert not User.objects.get(username="seed-load").has_usable_password()
    sae = SAE.objects.get()
    assert sae.d_sae == 40
    for path in (
        "openai_api/requestlog/",
        "openai_api/requestlog/seed_5F7/change/",
        "steering/feature/",
        f"steering/feature/{Feature.objects.order_by('pk')[1].pk}/change/",
        f"steering/sae/{sae.pk}/change/",
    ):
        assert admin_client.get(f"/admin/{path}").status_code == 200, path
    assert admin_client.get("/admin/openai_api/requestlog/?text=w7").context["lines"][0].pk == "seed_7"


def test_more_can_be_added():
    seed()
    seed(rows=50)
    assert (RequestLog.objects.count(), SAE.objects.count(), ApiKey.objects.count()) == (350, 2, 20)
    assert LanguageModel.objects.count() == 1


@pytest.mark.parametrize("what", ["request", "profile", "sae"])
def test_real_rows_are_left_alone(what: str):
    model = LanguageModel.objects.create(name="mine", source="x")
    if what == "request":
        RequestLog.objects.create(id="req_1", created_at=timezone.now(), endpoint="/v1/models", status=200)
    elif what == "profile":
        SteeringProfile.objects.create(name="mine", model=model)
    else:
        SAE.objects.create(name="mine", model=model, source="x", format="x", architecture="x", layer=0, d_in=1, d_sae=1)
    with pytest.raises(CommandError, match="--force"):
        seed()
    assert not RequestLog.objects.filter(pk__startswith="seed_").exists()
    seed(force=True)
    assert RequestLog.objects.filter(pk__startswith="seed_").count() == 300


@pytest.mark.parametrize("options", [{"rows": -1}, {"features": -1}, {"rows": 10**12}])
def test_numbers_are_bounded(options: dict[str, int]):
    with pytest.raises(CommandError, match="--rows and --features must be between 0 and"):
        seed(**options)

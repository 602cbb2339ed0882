"""Installing the demo from the dashboard: permissions and results."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from audit.models import AuditEvent
from inference.models import LanguageModel
from jobs.models import Job
from steering.models import SAE, SteeringProfile
from tests.console.test_pages import client_of, staff

pytestmark = pytest.mark.django_db
URL = "/admin/install-demo/"


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


def test_it_installs_what_the_command_does_and_says_so(root: User):
    client = client_of(root)
    assert "Install the demo" in client.get("/admin/").content.decode()
    text = client.post(URL, follow=True).content.decode()
    assert "Installed the demo: model demo, SAE demo-sae, profiles joyful@1, gloomy@1, cats@1, sea@1." in text
    assert "Install the demo" not in text
    assert (LanguageModel.objects.get().name, SAE.objects.get().name) == ("demo", "demo-sae")
    assert SteeringProfile.objects.count() == 4
    assert AuditEvent.objects.filter(subject="demo", user="root").exists()
    job = Job.objects.get(kind="steering.health")
    assert (job.params["sae"], job.owner) == (SAE.objects.get().pk, root)


def test_once_more_changes_nothing(root: User):
    client = client_of(root)
    client.post(URL)
    text = client.post(URL, follow=True).content.decode()
    assert "Installed the demo: model demo, SAE demo-sae." in text
    assert SteeringProfile.objects.count() == 4
    assert Job.objects.count() == 1


def test_what_stands_in_its_way_is_said_and_nothing_is_half_there(root: User):
    LanguageModel.objects.create(name="mine", aliases=["demo"], source="/m")
    text = client_of(root).post(URL, follow=True).content.decode()
    assert "Could not install the demo." in text
    assert not LanguageModel.objects.filter(name="demo").exists()


def test_who_may_not_add_models_cannot(root: User):
    assert client_of(staff("view_languagemodel")).post(URL).status_code == 403
    assert client_of(root).get(URL).status_code == 405
    assert not LanguageModel.objects.exists()

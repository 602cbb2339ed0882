"""Groups with permissions for the console and /api: Researchers, Auditors, Admins. docs/roles.md says what each may do.

They are written after every ``migrate`` (a permission taken from one of them by hand comes back then; make a group of
your own for other combinations). Permissions are named by strings, because those of the layers above are granted too;
names that do not exist (yet) are skipped, and come with the migration that creates them.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.db import DEFAULT_DB_ALIAS, transaction

from audit.origin import as_the_program

RESEARCHERS = (
    "inference.view_languagemodel",
    "console.view_loadsample",
    "console.use_playground",
    *(
        f"steering.{action}_{model}"
        for model in ("sae", "feature", "steeringprofile", "featureedit", "vectorset")
        for action in ("view", "add", "change", "delete")
    ),
    "steering.view_profileversion",
    "steering.view_plainvector",
    "steering.view_evaluation",
    "steering.publish_steeringprofile",
    "steering.archive_steeringprofile",
    "steering.review_steeringprofile",
    "jobs.view_job",
    "jobs.change_job",
    "steering.view_watchrule",
    "steering.view_watchevent",
    "openai_api.view_apikey",
)
AUDITORS = (
    "inference.view_languagemodel",
    "console.view_loadsample",
    "openai_api.view_requestlog",
    "openai_api.view_prompt_text",
    "openai_api.export_requestlog",
    "openai_api.view_logaccess",
    "openai_api.view_apikey",
    "audit.view_auditevent",
    "openai_api.view_keyday",
    "openai_api.see_all_apikeys",
    *(
        f"steering.view_{model}"
        for model in (
            "evaluation",
            "feature",
            "featureedit",
            "plainvector",
            "profileversion",
            "sae",
            "steeringpolicy",
            "steeringprofile",
            "vectorset",
            "watchevent",
            "watchrule",
        )
    ),
    "steering.see_all_steeringprofiles",
    "steering.see_all_vectorsets",
    "responses.view_storedresponse",
    "responses.view_conversation",
    "stored_chats.view_storedchat",
)
GROUPS: dict[str, tuple[str, ...] | None] = {
    "Researchers": RESEARCHERS,
    "Auditors": AUDITORS,
    "Admins": None,
}  # None: all


@transaction.atomic
def ensure_groups() -> None:
    """Create the groups and add the permissions that they lack. Idempotent."""
    from django.contrib.auth.models import Group, Permission

    permissions = {
        f"{permission.content_type.app_label}.{permission.codename}": permission
        for permission in Permission.objects.select_related("content_type")
    }
    with as_the_program():
        for name, wanted in GROUPS.items():
            group, _ = Group.objects.get_or_create(name=name)
            group.permissions.add(*(permissions[key] for key in (wanted or permissions) if key in permissions))


def grant_after_migrate(sender: AppConfig, *, using: str, **_: Any) -> None:
    """Receiver of ``post_migrate``, which Django sends once per app: at the last one all permissions exist."""
    if using == DEFAULT_DB_ALIAS and sender is _last_app():
        ensure_groups()


def _last_app() -> AppConfig:
    return [config for config in apps.get_app_configs() if config.models_module is not None][-1]

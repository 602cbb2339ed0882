"""The state of the server, and the current user."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.db.models import Count
from rest_framework.request import Request
from rest_framework.response import Response

from audit.models import AuditEvent
from audit.record import record
from core.errors import MillmError
from inference.client import EngineDownError, EngineStats, get_client
from inference.models import LanguageModel
from jobs.models import Job
from management_api.serializers import OBJECT, described
from management_api.viewset import Resource


@described(tags=["Server"], responses=OBJECT)
class Stats(Resource):
    queryset = Job.objects.none()
    permissions = {"show": "inference.view_languagemodel"}

    def show(self, request: Request) -> Response:
        """Return the state of the engine of this process, and the numbers of models and visible jobs by state."""
        jobs, models = Job.objects.visible_to(self.user), LanguageModel.objects.all()
        return Response({"engine": _engine(), "models": _by_state(models), "jobs": _by_state(jobs)})


@described(tags=["Server"], request=None, responses={202: OBJECT})
class EngineProcesses(Resource):
    queryset = Job.objects.none()
    permissions = {"replace": "inference.change_languagemodel"}

    def replace(self, request: Request) -> Response:
        """Replace the engine's processes by new ones, one after the other, each once its requests have finished. No
        request fails. `/api/stats` shows the progress.
        """
        count = get_client().replace_processes()
        if not count:
            message = "The engine has one process. Replacing it would end its requests; restart the server."
            raise MillmError(message, status=409, code="single_engine_process")
        record(AuditEvent.Action.CHANGE, "engine processes", user=self.user, detail=f"replacing all {count}")
        return Response({"processes": count}, status=202)


@described(tags=["Server"], responses=OBJECT)
class Me(Resource):
    queryset = Job.objects.none()
    permissions = {"show": None}

    def show(self, request: Request) -> Response:
        """Return the user and key of the request, with the user's groups and permissions."""
        groups = sorted(self.user.groups.values_list("name", flat=True))
        permissions = sorted(self.user.get_all_permissions())
        key = getattr(request.auth, "name", None)
        return Response({"user": self.user.get_username(), "key": key, "groups": groups, "permissions": permissions})


def _by_state(rows: Any) -> dict[str, int]:
    return dict(rows.order_by().values_list("state").annotate(count=Count("pk")))


def _engine() -> dict[str, Any]:
    try:
        stats = get_client().stats()
    except EngineDownError as error:
        stats = EngineStats("stopped", error=str(error))
    models = [
        {
            "name": each.name,
            "running": each.running,
            "waiting": each.waiting,
            "kv_used_ratio": each.kv_used_ratio,
            "max_batch_size": each.limits.max_batch_size,
            "kv_tokens": each.limits.kv_tokens,
            "replicas": each.replicas,
        }
        for each in stats.by_model
    ]
    own = {name: getattr(stats, name) for name in ("state", "running", "waiting", "free_slots", "steps", "restarts")}
    replicas = [asdict(each) for each in stats.replicas]
    return {**own, "error": stats.error, "models": models, "replicas": replicas}

"""Jobs: the user's own, or all of them with the permission to manage all jobs."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.kinds import may_see_result
from jobs.lanes import Lane
from jobs.models import Job
from jobs.services import cancel_job, retry_job
from management_api.serializers import ReadSerializer, described
from management_api.viewset import Filters, Resource

MAX_LINES = 500


class JobOut(ReadSerializer):
    owner = serializers.CharField(source="owner.username", default=None, allow_null=True)

    class Meta:
        model = Job
        fields: tuple[str, ...] = (
            *("id", "kind", "lane", "title", "owner", "state", "done", "total", "message", "error", "cancel_requested"),
            *("priority", "attempts", "crashes", "created_at", "started_at", "finished_at"),
        )


class JobDetail(JobOut):
    lines = serializers.SerializerMethodField(help_text="The newest log lines, oldest first.")

    class Meta(JobOut.Meta):
        fields: tuple[str, ...] = (*JobOut.Meta.fields, "params", "result", "lines")

    def get_lines(self, job: Job) -> list[str]:
        return [line.text for line in job.lines.order_by("-pk")[:MAX_LINES]][::-1]


class JobFilters(Filters):
    state = serializers.ChoiceField(choices=Job.State.choices, required=False)
    lane = serializers.ChoiceField(choices=Lane.choices, required=False)
    kind = serializers.CharField(max_length=100, required=False)


@described(tags=["Jobs"])
class Jobs(Resource):
    queryset = Job.objects.none()
    serializer_class = JobOut
    filters = JobFilters
    ordering = ("-created_at", "-pk")
    lookup_value_regex = "[0-9a-f-]+"
    permissions = {
        "list": "jobs.view_job",
        "retrieve": "jobs.view_job",
        "cancel": "jobs.change_job",
        "retry": "jobs.change_job",
    }

    def rows(self, user: User) -> QuerySet[Job]:
        return Job.objects.visible_to(user).select_related("owner")

    @described(parameters=[JobFilters])
    def list(self, request: Request) -> Response:
        """List jobs, newest first."""
        return super().list(request)

    @described(responses=JobDetail)
    def retrieve(self, request: Request, pk: str) -> Response:
        """Return a job. ``result`` and ``lines`` are empty for users without access to the data that the job read."""
        job = self.get_object()
        data = dict(JobDetail(job).data)
        return Response(data if may_see_result(job.kind, self.user) else data | {"result": {}, "lines": []})

    @described(request=None)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Cancel a job. A queued job ends at once, a running one when it next reports progress."""
        return self._answer_stored(cancel_job(job=self.get_object()))

    @described(request=None)
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: str) -> Response:
        """Resume a failed or cancelled job from its checkpoint."""
        return self._answer_stored(retry_job(job=self.get_object()))

    def _answer_stored(self, job: Job) -> Response:
        """Return the job as stored, because the database sets its times."""
        return self.answer(self.get_queryset().get(pk=job.pk))


def job_started(job: Job) -> Response:
    """Return 202 with the job."""
    data: dict[str, Any] = dict(JobOut(job).data)
    return Response(data, status=202)

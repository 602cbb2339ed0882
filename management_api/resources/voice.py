"""Voices of speech models. Recordings are uploaded in the console."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from inference.models import LanguageModel
from management_api.serializers import ReadSerializer, StrictModelInput, VisibleRowField, described
from management_api.viewset import Filters, Resource
from media.models import Voice
from media.voices import delete_voices, save_voice


class VoiceOut(ReadSerializer):
    is_recorded = serializers.BooleanField(help_text="Whether it imitates a recording.")

    class Meta:
        model = Voice
        fields: tuple[str, ...] = (
            *("id", "name", "model", "speaker", "embedding", "is_recorded", "consent", "created_at"),
        )


class VoiceInput(StrictModelInput):
    model = VisibleRowField(find=lambda user: LanguageModel.objects.all())

    class Meta:
        model = Voice
        fields: tuple[str, ...] = ("name", "model", "speaker", "embedding", "consent")


class VoiceFilters(Filters):
    model = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    name = serializers.CharField(max_length=100, required=False)


@described(tags=["Voices"])
class Voices(Resource):
    queryset = Voice.objects.none()
    serializer_class = VoiceOut
    filters = VoiceFilters
    ordering = ("name",)
    permissions = {
        "list": "media.view_voice",
        "retrieve": "media.view_voice",
        "create": "media.add_voice",
        "partial_update": "media.change_voice",
        "destroy": "media.delete_voice",
    }

    def rows(self, user: User) -> QuerySet[Voice]:
        is_recorded = ExpressionWrapper(Q(reference__isnull=False), output_field=BooleanField())
        return Voice.objects.defer("reference").annotate(is_recorded=is_recorded)

    def filter_rows(self, rows: QuerySet[Any], query: Any) -> QuerySet[Any]:
        """Find names in any case, as requests do."""
        fields = {"name": "name__iexact", "model": "model"}
        return rows.filter(**{fields[name]: value for name, value in query.items()})

    @described(parameters=[VoiceFilters])
    def list(self, request: Request) -> Response:
        """List voices by name."""
        return super().list(request)

    @described(request=VoiceInput, responses={201: VoiceOut})
    def create(self, request: Request) -> Response:
        """Create a voice from a speaker or an embedding."""
        voice = save_voice(voice=Voice(**self.read(VoiceInput)), user=self.user)
        return self.answer(self.get_queryset().get(pk=voice.pk), status=201)

    @described(request=VoiceInput)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change a voice."""
        voice = self.get_object()
        for name, value in self.read(VoiceInput, instance=voice, partial=True).items():
            setattr(voice, name, value)
        return self.answer(save_voice(voice=voice, user=self.user))

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a voice."""
        delete_voices(voices=[self.get_object()], user=self.user)
        return Response(status=204)

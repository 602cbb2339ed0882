"""Admin pages of voices: what each is made of, its recording, and a sentence to hear it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import UploadedFile
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from core.errors import MillmError
from inference.models import LanguageModel
from media.models import Voice
from media.voices import MAX_RECORDING_S, delete_voices, read_embedding, read_recording, save_voice, speakers_of
from openai_api.models import LogAccess
from openai_api.request_log.access import HIDDEN, may_see_text, record_access

SENTENCE = "The quick brown fox jumps over the lazy dog."
MAX_EMBEDDING_FILE = 2**18  # bytes


class EmbeddingField(forms.JSONField):
    def prepare_value(self, value: Any) -> Any:
        """Return the text to edit: empty without an embedding, not ``null``."""
        return "" if value is None else super().prepare_value(value)


class VoiceForm(forms.ModelForm[Voice]):
    """Reads the files during validation, so that their problems are shown next to the fields."""

    embedding_file = forms.FileField(
        required=False,
        max_length=200,
        help_text="A .npy or .json file with one vector. It replaces the embedding above.",
    )
    recording = forms.FileField(
        required=False,
        max_length=200,
        widget=forms.FileInput(attrs={"accept": "audio/*,video/*"}),
        help_text=f"The voice to imitate, in any format, at most {MAX_RECORDING_S} seconds. It is stored as FLAC.",
    )
    remove_recording = forms.BooleanField(required=False, label="Delete the recording")

    class Meta:
        model = Voice
        fields = ("name", "model", "speaker", "embedding", "consent")
        field_classes = {"embedding": EmbeddingField}
        widgets = {
            "speaker": forms.TextInput(attrs={"list": "voice-speakers"}),
            "embedding": forms.Textarea(attrs={"rows": 3, "cols": 60}),
            "consent": forms.Textarea(attrs={"rows": 2, "cols": 60}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "model" not in self.fields:  # the page is read-only
            return
        widget: Any = self.fields["model"].widget
        widget.can_add_related = widget.can_change_related = widget.can_view_related = False
        if self.instance.reference:
            self.fields["recording"].label = "New recording"
        else:
            del self.fields["remove_recording"]

    def clean_embedding_file(self) -> list[float] | None:
        upload = self.cleaned_data["embedding_file"]
        if upload is None:
            return None
        try:
            return read_embedding(upload.read(MAX_EMBEDDING_FILE), upload.name)
        except MillmError as error:
            raise forms.ValidationError(error.message) from error

    def clean_recording(self) -> bytes | None:
        upload = self.cleaned_data["recording"]
        return None if upload is None else _flac(upload)

    def clean_speaker(self) -> str:
        speaker = str(self.cleaned_data["speaker"])
        model = self.cleaned_data.get("model")
        known = speakers_of(model.name) if speaker and model is not None else ()
        if known and speaker.lower() not in map(str.lower, known):
            shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
            raise forms.ValidationError(f"The model has no speaker of that name. It has {shown}.")
        return speaker

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if data.get("embedding_file") is not None:
            data["embedding"] = data["embedding_file"]
        if data.get("recording") is not None:
            self.instance.reference = data["recording"]
        elif data.get("remove_recording"):
            self.instance.reference = None
        return data


def _flac(upload: UploadedFile[Any]) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        for block in upload.chunks():
            file.write(block)
        file.flush()
        try:
            return read_recording(Path(file.name))
        except MillmError as error:
            raise forms.ValidationError(error.message) from error


@admin.register(Voice)
class VoiceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # it takes none at run time
    form = VoiceForm
    empty_words = "No voices yet. A voice is a name for a speaker, an embedding or a recording."
    change_form_template = "admin/media/voice/change_form.html"
    list_display = ("name", "model", "made_of", "created_at")
    list_filter = (("model", admin.RelatedOnlyFieldListFilter),)
    list_select_related = ("model",)
    search_fields = ("name", "model__name")
    readonly_fields = ("player", "hidden_recording")

    class Media:
        css = {"all": ("inference/models.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Voice]:
        rows: QuerySet[Voice] = super().get_queryset(request)
        is_recorded = ExpressionWrapper(Q(reference__isnull=False), output_field=BooleanField())
        return rows.defer("reference").annotate(is_recorded=is_recorded)

    def get_fieldsets(self, request: HttpRequest, obj: Voice | None = None) -> Any:
        may_change = self.has_change_permission(request, obj) if obj else self.has_add_permission(request)
        has_player = obj is not None and _is_recorded(obj)
        uploads = ("recording", *(("remove_recording",) if has_player else ())) if may_change else ()
        made_of = ("speaker", "embedding", *(("embedding_file",) if may_change else ()))
        player = ("player",) if may_see_text(request.user) else ("hidden_recording",)
        recorded = (*(player if has_player else ()), *uploads, "consent")
        words = "Give a speaker, an embedding or a recording. Without any, the model's default voice speaks."
        return (
            (None, {"fields": ("name", "model")}),
            ("Made of", {"fields": (*made_of, *recorded), "description": words if may_change else ""}),
        )

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        names = LanguageModel.objects.filter(kind=LanguageModel.Kind.SPEECH).values_list("name", flat=True)
        speakers = [(speaker, name) for name in names for speaker in speakers_of(name)]
        return super().render_change_form(
            request, {**context, "speakers": speakers, "sentence": SENTENCE}, *args, **kwargs
        )

    @admin.display(description="made of")
    def made_of(self, voice: Voice) -> str:
        if _is_recorded(voice):
            return "recording"
        if voice.embedding:
            return f"embedding of {len(voice.embedding):,} numbers"
        return f"speaker {voice.speaker}" if voice.speaker else "model default"

    @admin.display(description="recording")
    def player(self, voice: Voice) -> str | SafeString:
        url = reverse("admin:media_voice_recording", args=[voice.pk])
        return format_html('<audio controls preload="none" src="{}" aria-label="Recording"></audio>', url)

    @admin.display(description="recording")
    def hidden_recording(self, voice: Voice) -> str:
        return HIDDEN

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.recording_view)
        return [path("<path:object_id>/recording/", view, name="media_voice_recording"), *super().get_urls()]

    def recording_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return the recording as FLAC; the access is recorded."""
        voice = self.get_object(request, unquote(object_id))
        if not isinstance(voice, Voice) or not voice.reference:
            raise Http404
        if not self.has_view_permission(request, voice) or not may_see_text(request.user):
            raise PermissionDenied(HIDDEN)
        assert isinstance(request.user, User)
        record_access(act=LogAccess.Act.PLAY, user=request.user, detail={"voice": voice.name})
        return HttpResponse(bytes(voice.reference), content_type="audio/flac", headers={"Cache-Control": "no-store"})

    def save_model(self, request: HttpRequest, obj: Voice, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        assert isinstance(request.user, User)
        save_voice(voice=obj, user=request.user)

    def delete_model(self, request: HttpRequest, obj: Voice) -> None:
        assert isinstance(request.user, User)
        delete_voices(voices=[obj], user=request.user)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Voice]) -> None:
        assert isinstance(request.user, User)
        delete_voices(voices=queryset, user=request.user)


def _is_recorded(voice: Any) -> bool:
    return bool(voice.is_recorded)

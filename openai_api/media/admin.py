"""Admin pages of voices and of videos."""

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
from media.models import Video, Voice
from media.videos import delete_video
from media.voices import MAX_RECORDING_S, delete_voices, read_embedding, read_recording, save_voice, speakers_of
from openai_api.models import LogAccess
from openai_api.request_log.access import HIDDEN, may_see_text, record_access
from openai_api.request_log.summary import visible_text
from openai_api.stored_object_admin import StoredObjectAdmin, text_blocks

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


STATE_BADGES = {
    Video.Status.IN_PROGRESS: "badge-busy",
    Video.Status.COMPLETED: "badge-good",
    Video.Status.FAILED: "badge-bad",
}


@admin.register(Video)
class VideoAdmin(StoredObjectAdmin):
    """Videos of all users. Prompts and previews are shown to users who may read the texts of requests."""

    empty_words = "No videos yet. Clients create them at /v1/videos."
    list_display = ("public_id", "model", "state", "size", "seconds", "owner", "created_at")
    list_filter = ("status", "model", ("owner", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("owner",)
    search_fields = ("public_id", "model", "owner__username")
    search_help_text = "Id, model or owner."
    actions = ()
    text_fields = ("prompt_text", "preview")
    readonly_fields = ("state", "problem", "size", "parameters")
    fieldsets = (
        (None, {"fields": ("public_id", "state", "problem", "model", "owner", "remixed_from")}),
        ("Parameters", {"fields": ("size", "seconds", "fps", "num_frames", "seed", "parameters")}),
        ("Time", {"fields": ("created_at", "started_at", "completed_at", "expires_at", "attempts")}),
    )

    class Media:
        css = {"all": ("inference/models.css",)}

    def has_delete_permission(self, request: HttpRequest, obj: Video | None = None) -> bool:
        """Allow what the role allows: deleting a video stops it."""
        return admin.ModelAdmin.has_delete_permission(self, request, obj)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        row = (getattr(response, "context_data", None) or {}).get("original")
        if response.status_code == 200 and isinstance(row, Video) and may_see_text(request.user):
            assert isinstance(request.user, User)
            record_access(act=LogAccess.Act.READ, user=request.user, detail={"video": row.public_id})
        return response

    @admin.display(description="state", ordering="status")
    def state(self, video: Video) -> SafeString:
        badge = STATE_BADGES.get(Video.Status(video.status), "")
        words = "expired" if video.has_expired else video.get_status_display().lower()
        shown = format_html('<span class="badge {}">{}</span>', badge, words)
        if video.status != Video.Status.IN_PROGRESS:
            return shown
        bar = '{} <progress class="meter" max="100" value="{}" aria-label="Progress">{} %</progress>'
        return format_html(bar, shown, video.progress, video.progress)

    @admin.display(description="error")
    def problem(self, video: Video) -> str:
        return f"{video.error_code}: {video.error_message}" if video.error_code else "–"

    @admin.display(description="size")
    def size(self, video: Video) -> str:
        return f"{video.width}x{video.height}"

    @admin.display(description="options")
    def parameters(self, video: Video) -> str:
        shown = (f"{name}: {value}" for name, value in video.options.items() if name != "negative_prompt")
        return ", ".join(shown) or "–"

    @admin.display(description="prompt")
    def prompt_text(self, video: Video) -> SafeString:
        negative = video.options.get("negative_prompt")
        avoided = [("Negative prompt", visible_text(str(negative)))] if negative else []
        return text_blocks([("", visible_text(video.prompt)), *avoided])

    @admin.display(description="preview")
    def preview(self, video: Video) -> str | SafeString:
        if "mp4" not in video.outputs or video.has_expired:
            return "–"
        url = reverse("video-preview", args=[video.public_id])
        player = (
            '<video controls playsinline preload="none" src="{}" aria-label="Preview"><track kind="captions"></video>'
        )
        return format_html(player, url)

    def delete_model(self, request: HttpRequest, obj: Video) -> None:
        delete_video(public_id=obj.public_id, owner_id=obj.owner_id)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Video]) -> None:
        for video in queryset:
            self.delete_model(request, video)

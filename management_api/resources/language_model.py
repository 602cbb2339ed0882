"""Models: register, change, load, unload, pin and delete."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from inference import services
from inference.models import LanguageModel
from management_api.serializers import Flag, ReadSerializer, StrictInput, StrictModelInput, Text, described
from management_api.viewset import Filters, Resource
from steering.profiles.lifecycle import set_default_profile

CHANGE = "inference.change_languagemodel"
SETTABLE = (
    *("name", "aliases", "source", "revision", "dtype", "device", "quantization", "trust_remote_code", "allow_pickle"),
    *("context_length", "chat_template", "tool_format", "use_as", "default_sampling", "is_default", "autoload"),
    *("pinned", "keep_alive_s", "replicas", "shared_prefix_cache"),
    *("input_price", "cached_input_price", "output_price"),
)


class ModelOut(ReadSerializer):
    class Meta:
        model = LanguageModel
        fields: tuple[str, ...] = (
            *("id", *SETTABLE, "default_profile", "kind", "state", "error", "memory_bytes"),
            *("own_context_length", "loaded_at", "created_at"),
        )


class ModelInput(StrictModelInput):
    class Meta:
        model = LanguageModel
        fields: tuple[str, ...] = SETTABLE
        # A new default model replaces the previous one, so the uniqueness of the default is not validated.
        extra_kwargs: dict[str, Any] = {"is_default": {"validators": []}}


class ModelFilters(Filters):
    name = serializers.CharField(max_length=200, required=False)
    state = serializers.ChoiceField(choices=LanguageModel.State.choices, required=False)
    kind = serializers.ChoiceField(choices=LanguageModel.Kind.choices, required=False)


class UnloadInput(StrictInput):
    now = Flag(default=False, help_text="Fail running requests with `model_unloaded`.")


class PinInput(StrictInput):
    pinned = Flag(default=True)


class DefaultProfileInput(StrictInput):
    profile = Text(max_length=200, allow_blank=True, help_text="name or name@version. Empty: no profile.")


@described(tags=["Models"])
class Models(Resource):
    queryset = LanguageModel.objects.none()
    serializer_class = ModelOut
    filters = ModelFilters
    ordering = ("name",)
    permissions = {
        "list": "inference.view_languagemodel",
        "retrieve": "inference.view_languagemodel",
        "create": "inference.add_languagemodel",
        "partial_update": CHANGE,
        "destroy": "inference.delete_languagemodel",
        "load": CHANGE,
        "unload": CHANGE,
        "pin": CHANGE,
        "default_profile": CHANGE,
        "memory": "inference.view_languagemodel",
    }

    def rows(self, user: User) -> QuerySet[LanguageModel]:
        return LanguageModel.objects.all()

    @described(parameters=[ModelFilters])
    def list(self, request: Request) -> Response:
        """List models by name."""
        return super().list(request)

    @described(request=ModelInput, responses={201: ModelOut})
    def create(self, request: Request) -> Response:
        """Register a model. A model from the Hub is downloaded when it is first loaded."""
        return self.answer(services.register_model(**self.read(ModelInput), user=self.user), status=201)

    @described(request=ModelInput)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change a model. Changes that affect loading take effect when the model is next loaded."""
        model = self.get_object()
        for name, value in self.read(ModelInput, instance=model, partial=True).items():
            setattr(model, name, value)
        return self.answer(services.save_model(model, user=self.user))

    @described(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a model. Fails while SAEs, vectors or profiles use it."""
        services.remove_models(models=[self.get_object()])
        return Response(status=204)

    @described(request=None, responses={202: ModelOut})
    @action(detail=True, methods=["post"])
    def load(self, request: Request, pk: str) -> Response:
        """Start to load a model. ``state`` tells when it is loaded, ``error`` why loading failed."""
        model = self.get_object()
        services.load_model(model=model)
        return self.answer(model, status=202)

    @described(request=UnloadInput, responses={202: ModelOut})
    @action(detail=True, methods=["post"])
    def unload(self, request: Request, pk: str) -> Response:
        """Start to unload a model. Running requests finish first, or fail with ``model_unloaded`` if ``now`` is set.
        The next request loads the model again."""
        model = self.get_object()
        services.unload_model(model=model, now=self.read(UnloadInput)["now"])
        return self.answer(model, status=202)

    @described(request=PinInput)
    @action(detail=True, methods=["post"])
    def pin(self, request: Request, pk: str) -> Response:
        """Pin or unpin a model. A pinned model is never unloaded to free memory or because it is idle."""
        model = self.get_object()
        services.pin_model(model=model, is_pinned=self.read(PinInput)["pinned"])
        return self.answer(model)

    @described(request=DefaultProfileInput)
    @action(detail=True, methods=["post"])
    def default_profile(self, request: Request, pk: str) -> Response:
        """Set the profile of requests that do not name one."""
        reference = self.read(DefaultProfileInput)["profile"]
        return self.answer(set_default_profile(model=self.get_object(), reference=reference, user=self.user))

    @described(responses={200: {"type": "object", "properties": {"text": {"type": "string"}}}})
    @action(detail=True, methods=["get"])
    def memory(self, request: Request, pk: str) -> Response:
        """Describe the memory that the model needs and the memory that is available."""
        return Response({"text": services.describe_memory(model=self.get_object())})

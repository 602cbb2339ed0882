"""Corpora: texts on which SAEs are measured and profiles evaluated."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from management_api.serializers import StrictInput, described
from management_api.uploads import SentFile, UploadResource, form, opener
from steering.corpora.corpus_registry import list_corpora
from steering.corpora.uploads import delete_corpus, save_corpus
from steering.models import SAE

CHANGE = "steering.change_sae"


class CorpusOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    kind = serializers.ChoiceField(["shipped", "file", "app"])
    size = serializers.IntegerField(allow_null=True, help_text="In bytes.")


class NewCorpusOut(CorpusOut):
    version = serializers.CharField(help_text="Start of the SHA-256 of the file.")
    documents = serializers.IntegerField()


class CorpusForm(StrictInput):
    file = SentFile(help_text="JSON lines with `text` or `messages`, or a text file.")
    name = serializers.CharField(max_length=100, default="", allow_blank=True, help_text="Default: the file's name.")


@described(tags=["Corpora"])
class Corpora(UploadResource):
    queryset = SAE.objects.none()  # corpora are files
    serializer_class = CorpusOut
    lookup_url_kwarg = "name"
    lookup_value_regex = r"[\w.-]{1,100}"
    uploads = frozenset({"create"})
    permissions = {"list": "steering.view_sae", "create": CHANGE, "destroy": CHANGE}

    def rows(self, user: User) -> QuerySet[SAE]:
        return SAE.objects.none()

    @described(responses=CorpusOut(many=True), parameters=[])
    def list(self, request: Request) -> Response:
        """List all corpora: the shipped one, uploaded files, and those that other parts of the server provide."""
        self.query()
        return Response({"object": "list", "data": CorpusOut(list_corpora(), many=True).data, "next": None})

    @described(request=form(CorpusForm), responses={201: NewCorpusOut})
    def create(self, request: Request) -> Response:
        """Upload a corpus."""
        data = self.read(CorpusForm)
        sent = data["file"]
        name = data["name"] or sent.name
        corpus = save_corpus(name=name, content=opener(sent), user=self.user)
        made = {"name": name, "kind": "file", "size": sent.size, "version": corpus.version}
        return Response(NewCorpusOut({**made, "documents": len(corpus.documents)}).data, status=201)

    @described(responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Delete an uploaded corpus. Queued jobs that name it fail."""
        delete_corpus(name=name, user=self.user)
        return Response(status=204)

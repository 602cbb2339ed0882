"""Write comments and saved lists, each with an event of the audit trail."""

from __future__ import annotations

from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction

from audit.models import AuditEvent
from audit.record import record, record_deleted, record_saved, stored_fields
from console.models import Comment, SavedItem, SavedList, Subject
from openai_api.models import RequestLog
from steering.models import Feature, VectorSet

MAX_COMMENTS = 500  # of one object
MAX_LISTS = 1_000
MAX_ITEMS = 5_000  # of one list
TEXT = forms.CharField(max_length=4_000)  # refuse what the database would not store either
NAME = forms.CharField(max_length=100)
NOTE = forms.CharField(max_length=500, required=False)


def subject_field(subject: Subject) -> str:
    """Return the name of the column that refers to objects of this kind."""
    match subject:
        case Feature():
            return "feature"
        case VectorSet():
            return "vector_set"
        case RequestLog():
            return "request"


def model_of(subject: Subject) -> str:
    """Return the name of the language model that the object belongs to."""
    match subject:
        case Feature():
            return subject.sae.model.name
        case VectorSet():
            return subject.model.name
        case RequestLog():
            return subject.model


@transaction.atomic
def add_comment(*, subject: Subject, text: str, user: User) -> Comment:
    """Add a comment. Raise ValidationError for an empty or too long text, or too many comments."""
    about = {subject_field(subject): subject}
    if Comment.objects.filter(**about).count() >= MAX_COMMENTS:
        raise ValidationError(f"This has {MAX_COMMENTS} comments already.")
    comment = Comment.objects.create(author=user, username=user.get_username(), text=TEXT.clean(text), **about)
    record(AuditEvent.Action.ADD, comment, user=user, model=model_of(subject))
    return comment


@transaction.atomic
def delete_comment(*, comment: Comment, user: User) -> None:
    record_deleted(comment, user=user, model=model_of(comment.subject), detail=f"written by {comment.username}")
    comment.delete()


@transaction.atomic
def create_list(*, name: str, user: User, description: str = "") -> SavedList:
    """Create a list. Raise ValidationError for an invalid or taken name."""
    if SavedList.objects.count() >= MAX_LISTS:
        raise ValidationError(f"There are {MAX_LISTS:,} lists already; delete one first.")
    saved_list = SavedList(name=NAME.clean(name), description=description, created_by=user)
    saved_list.full_clean()
    saved_list.save()
    record_saved(saved_list, before=None, user=user)
    return saved_list


@transaction.atomic
def save_list(*, saved_list: SavedList, user: User) -> None:
    """Save the name and the description of a list."""
    before = stored_fields(saved_list)
    saved_list.save()
    record_saved(saved_list, before=before, user=user)


@transaction.atomic
def delete_list(*, saved_list: SavedList, user: User) -> None:
    record_deleted(saved_list, user=user, detail=f"with {saved_list.items.count()} entries")
    saved_list.delete()


@transaction.atomic
def save_to_list(*, saved_list: SavedList, subject: Subject, note: str, user: User) -> SavedItem:
    """Add an object to a list; where it is an entry already, replace its note. Raise ValidationError."""
    SavedList.objects.select_for_update().get(pk=saved_list.pk)
    about = {subject_field(subject): subject}
    item = saved_list.items.filter(**about).first()
    is_new = item is None
    if item is None:
        if saved_list.items.count() >= MAX_ITEMS:
            raise ValidationError(f"The list has {MAX_ITEMS:,} entries already.")
        item = SavedItem(saved_list=saved_list, added_by=user, **about)
    item.note = NOTE.clean(note)
    item.save()
    did = "added" if is_new else "changed the note of"
    record(AuditEvent.Action.CHANGE, saved_list, user=user, model=model_of(subject), detail=f"{did} {subject}")
    return item


@transaction.atomic
def remove_from_list(*, item: SavedItem, user: User) -> None:
    subject = item.subject
    record(AuditEvent.Action.CHANGE, item.saved_list, user=user, model=model_of(subject), detail=f"removed {subject}")
    item.delete()

"""Give jobs their lanes and accounts, and remove the tables of procrastinate, which delivered jobs before."""

from django.db import migrations, models
from django.db.models import F, Value
from django.db.models.functions import Cast, Concat

LANES = {
    "interactive": (
        "inference.load_model",
        "inference.unload_model",
        "inference.warm",
        "responses.generate",
        "steering.compare",
        "steering.extract",
        "steering.headline",
        "steering.replay",
    ),
    "system": (
        "openai_api.prune_kept",
        "openai_api.prune_log",
        "steering.embed_labels",
        "steering.prune_uploads",
        "storage.ingestion",
    ),
}

DROP_PROCRASTINATE = """
DO $$
DECLARE found record;
BEGIN
    FOR found IN SELECT c.oid::regclass AS name FROM pg_class c
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.relname LIKE 'procrastinate\\_%'
    LOOP EXECUTE format('DROP TABLE IF EXISTS %s CASCADE', found.name); END LOOP;
    FOR found IN SELECT p.oid::regprocedure AS name FROM pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.proname LIKE 'procrastinate\\_%'
    LOOP EXECUTE format('DROP FUNCTION IF EXISTS %s CASCADE', found.name); END LOOP;
    FOR found IN SELECT t.oid::regtype AS name FROM pg_type t
        WHERE t.typnamespace = current_schema()::regnamespace AND t.typname LIKE 'procrastinate\\_%'
    LOOP EXECUTE format('DROP TYPE IF EXISTS %s CASCADE', found.name); END LOOP;
END $$;
DELETE FROM django_migrations WHERE app = 'procrastinate';
"""


def fill(apps, schema_editor):
    jobs = apps.get_model("jobs", "Job").objects
    for lane, kinds in LANES.items():
        jobs.filter(kind__in=kinds).update(lane=lane)
    owner = Cast(F("owner_id"), models.CharField())
    jobs.filter(owner__isnull=False).update(account=Concat(Value("user "), owner))
    jobs.exclude(state="queued").update(claimed_at=F("started_at"))
    apps.get_model("contenttypes", "ContentType").objects.filter(app_label="procrastinate").delete()


class Migration(migrations.Migration):
    dependencies = [("jobs", "0003_page_texts"), ("contenttypes", "0002_remove_content_type_name")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="lane",
            field=models.CharField(
                choices=[("interactive", "Interactive"), ("bulk", "Bulk"), ("system", "System"), ("media", "Media")],
                db_default="bulk",
                help_text="Lanes have workers of their own.",
                max_length=20,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="account",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="Whose turn in the lane the job uses: a user or an API key; empty: the server itself.",
                max_length=40,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="claimed_at",
            field=models.DateTimeField(editable=False, help_text="The newest start.", null=True),
        ),
        migrations.AlterField(
            model_name="job",
            name="priority",
            field=models.SmallIntegerField(
                default=0, help_text="Of an owner's jobs in a lane, those with a higher priority start first."
            ),
        ),
        migrations.AddIndex(
            model_name="job", index=models.Index(fields=["lane", "state", "account"], name="job_lane_queue")
        ),
        migrations.AddIndex(
            model_name="job", index=models.Index(fields=["lane", "account", "-claimed_at"], name="job_lane_turns")
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.RunSQL(DROP_PROCRASTINATE, migrations.RunSQL.noop),
    ]

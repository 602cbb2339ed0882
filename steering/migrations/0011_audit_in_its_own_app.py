"""The trail of steering becomes that of everything: its events, and who may see them, move to the app audit."""

from django.db import migrations

EVENTS = """
INSERT INTO audit_auditevent
    (at, "user", action, kind, object_id, subject, model, detail, changes, "key", command, request_id)
SELECT at, "user", action, '', '', subject, model, detail, '{}', '', '', '' FROM steering_auditevent ORDER BY id;
"""
# Permissions hang on the content type; with it go the grants to users and groups.
CONTENT_TYPE = """
UPDATE django_content_type SET app_label = 'audit' WHERE app_label = 'steering' AND model = 'auditevent'
    AND NOT EXISTS (SELECT FROM django_content_type WHERE app_label = 'audit' AND model = 'auditevent');
"""
CONTENT_TYPE_BACK = """
UPDATE django_content_type SET app_label = 'steering' WHERE app_label = 'audit' AND model = 'auditevent'
    AND NOT EXISTS (SELECT FROM django_content_type WHERE app_label = 'steering' AND model = 'auditevent');
"""
EVENTS_BACK = """
INSERT INTO steering_auditevent (at, "user", action, subject, model, detail)
SELECT at, "user", action, subject, model, detail FROM audit_auditevent WHERE kind = '' ORDER BY id;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("steering", "0010_evaluation"),
        ("audit", "0002_immutable_events"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]
    operations = [
        migrations.RunSQL(EVENTS, EVENTS_BACK),
        migrations.RunSQL(CONTENT_TYPE, CONTENT_TYPE_BACK),
        migrations.DeleteModel(name="AuditEvent"),
    ]

"""The table of events cannot be emptied either: its role has only the rights to read it and to add to it.

The owner of the table could grant these rights again and drop the triggers. A deployment that keeps the owner's password
from the application closes that too; see docs/decisions/0029-audit-trail.md.
"""

from django.db import migrations

FORWARDS = """
CREATE TRIGGER audit_event_is_not_truncated BEFORE TRUNCATE ON audit_auditevent
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse_event_change();
REVOKE UPDATE, DELETE, TRUNCATE ON audit_auditevent FROM CURRENT_USER;
"""
BACKWARDS = """
DROP TRIGGER audit_event_is_not_truncated ON audit_auditevent;
GRANT UPDATE, DELETE, TRUNCATE ON audit_auditevent TO CURRENT_USER;
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0002_immutable_events")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]

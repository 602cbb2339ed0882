"""Events are only ever added, whoever writes to the table."""

from django.db import migrations

FORWARDS = """
CREATE FUNCTION audit_refuse_event_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'Events of the audit trail are never changed or deleted.' USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER audit_event_is_immutable BEFORE UPDATE OR DELETE ON audit_auditevent
    FOR EACH ROW EXECUTE FUNCTION audit_refuse_event_change();
"""
BACKWARDS = """
DROP TRIGGER audit_event_is_immutable ON audit_auditevent;
DROP FUNCTION audit_refuse_event_change();
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]

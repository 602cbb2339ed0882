"""Published versions cannot be changed or deleted, whoever writes to the table."""

from django.db import migrations

# Only published_by may change, and only to NULL: that happens when the user is deleted.
FORWARDS = """
CREATE FUNCTION steering_refuse_version_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE'
        AND NEW.published_by_id IS NULL
        AND ROW(NEW.id, NEW.profile_id, NEW.number, NEW.edits, NEW.fingerprint, NEW.note, NEW.published_at)
            IS NOT DISTINCT FROM
            ROW(OLD.id, OLD.profile_id, OLD.number, OLD.edits, OLD.fingerprint, OLD.note, OLD.published_at)
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'A published version is never changed; publish a new one.' USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER steering_version_is_immutable BEFORE UPDATE OR DELETE ON steering_profileversion
    FOR EACH ROW EXECUTE FUNCTION steering_refuse_version_change();
"""
BACKWARDS = """
DROP TRIGGER steering_version_is_immutable ON steering_profileversion;
DROP FUNCTION steering_refuse_version_change();
"""


class Migration(migrations.Migration):
    dependencies = [("steering", "0001_initial")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]

"""The table of published versions cannot be emptied, as its rows cannot be changed or deleted."""

from django.db import migrations

FORWARDS = """
CREATE TRIGGER steering_version_is_not_truncated BEFORE TRUNCATE ON steering_profileversion
    FOR EACH STATEMENT EXECUTE FUNCTION steering_refuse_version_change();
REVOKE TRUNCATE ON steering_profileversion FROM CURRENT_USER;
"""
BACKWARDS = """
DROP TRIGGER steering_version_is_not_truncated ON steering_profileversion;
GRANT TRUNCATE ON steering_profileversion TO CURRENT_USER;
"""


class Migration(migrations.Migration):
    dependencies = [("steering", "0015_phases_and_attention_sinks")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]

"""Records of access to the request log are only ever added, whoever writes to the table.

One change is allowed: an export that has not ended yet counts its rows, and is marked complete at its end.
"""

from django.db import migrations

FORWARDS = """
CREATE FUNCTION openai_api_refuse_access_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE'
        AND OLD.act = 'export' AND NOT OLD.is_complete AND NEW.num_rows >= OLD.num_rows
        AND ROW(NEW.id, NEW.at, NEW.act, NEW.username, NEW.request_id, NEW.detail)
            IS NOT DISTINCT FROM
            ROW(OLD.id, OLD.at, OLD.act, OLD.username, OLD.request_id, OLD.detail)
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'Records of access to the log are never changed or deleted.' USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER openai_api_access_is_immutable BEFORE UPDATE OR DELETE ON openai_api_logaccess
    FOR EACH ROW EXECUTE FUNCTION openai_api_refuse_access_change();
CREATE TRIGGER openai_api_access_is_not_truncated BEFORE TRUNCATE ON openai_api_logaccess
    FOR EACH STATEMENT EXECUTE FUNCTION openai_api_refuse_access_change();
REVOKE DELETE, TRUNCATE ON openai_api_logaccess FROM CURRENT_USER;
"""
BACKWARDS = """
DROP TRIGGER openai_api_access_is_not_truncated ON openai_api_logaccess;
DROP TRIGGER openai_api_access_is_immutable ON openai_api_logaccess;
DROP FUNCTION openai_api_refuse_access_change();
GRANT DELETE, TRUNCATE ON openai_api_logaccess TO CURRENT_USER;
"""


class Migration(migrations.Migration):
    dependencies = [("openai_api", "0012_request_source")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]

"""The index over vectors of one length is made by a function of the tables' owner: the application does not own them."""

from django.db import migrations

FORWARDS = """
DO $outer$
BEGIN
    EXECUTE format($create$
        CREATE FUNCTION storage_index_chunks(dimensions integer) RETURNS void
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = %I, %I, pg_temp AS $$
        DECLARE
            kind text := CASE WHEN dimensions <= 2000 THEN 'vector' ELSE 'halfvec' END;
        BEGIN
            IF dimensions IS NULL OR dimensions < 1 OR dimensions > 4000 THEN
                RAISE EXCEPTION 'Vectors of %% dimensions have no index.', dimensions;
            END IF;
            PERFORM pg_advisory_xact_lock(7010010);
            EXECUTE format(
                'CREATE INDEX IF NOT EXISTS storage_chunk_hnsw_%%s ON storage_chunk '
                'USING hnsw ((embedding::%%s(%%s)) %%s_cosine_ops) WHERE dimensions = %%s',
                dimensions, kind, dimensions, kind, dimensions
            );
        END
        $$
    $create$, current_schema(), (
        SELECT nspname FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'
    ));
END
$outer$;
"""
BACKWARDS = "DROP FUNCTION storage_index_chunks(integer);"


class Migration(migrations.Migration):
    dependencies = [("storage", "0001_initial")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]

# Like the official image: create the database at the first start, then serve it. The server that creates it listens on
# no port, but pg_isready reaches its socket.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    password=$(mktemp)
    printf '%s\n' "$POSTGRES_PASSWORD" > "$password"
    initdb --username="$POSTGRES_USER" --pwfile="$password"
    rm "$password"
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl start --wait --options="-c listen_addresses=''"
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl stop --wait --mode=fast
fi
exec postgres -c listen_addresses='*'

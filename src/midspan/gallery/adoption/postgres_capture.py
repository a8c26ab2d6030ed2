"""SQL that keeps a gallery equal to the application's table, in the application's transactions.

`{prefix}adopted` says which row of the gallery is which key of the table, with a digest of what the
vector was made from. `{prefix}apply(keys)` compares these keys with the table and mends the
gallery: triggers call it with what a statement changed, `reconcile` with every key. Replacing an
image or a vector gives the item a new row, so a vector that an encoder is still computing for the
former one is refused when it comes.

A trigger never fails the application: what it could not note in time is kept in `{prefix}missed`,
and the next reconcile or the maintenance of any open gallery applies it.
"""

from __future__ import annotations

from collections.abc import Iterator

from midspan.gallery.adoption.binding import TableBinding, literal, quoted
from midspan.gallery.records import ID_BYTES, URI_BYTES
from midspan.spaces import Metric

LOCK_WAIT = "2s"  # that a trigger waits for a change of the gallery's state
TRIGGERS = {
    "INSERT": "REFERENCING NEW TABLE AS new_rows",
    "UPDATE": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "DELETE": "REFERENCING OLD TABLE AS old_rows",
    "TRUNCATE": "",
}


class Capture:
    """The statements for one binding; `prefix` is that of the gallery's tables."""

    def __init__(
        self, binding: TableBinding, *, prefix: str, schema: str, extension: str, dim: int,
        metric: Metric, untyped: bool,
    ) -> None:  # fmt: skip
        self.binding, self.prefix = binding, prefix
        self._schema, self._extension = schema, extension
        self._dim, self._metric, self._untyped = dim, metric, untyped

    def name(self, table: str) -> str:
        return f"{quoted(self._schema)}.{quoted(self.prefix + table)}"

    # ---- parts of statements; `t` is the application's row

    def usable(self, column: str, t: str = "t") -> str:
        """Whether a vector can be compared."""
        vector = f"{t}.{quoted(column)}"
        conditions = [f"{vector} IS NOT NULL"]
        if self._untyped:
            conditions.append(f"vector_dims({vector}) = {int(self._dim)}")
        if self._metric == "cosine":
            norm = "vector_norm" if self.binding.vector_type == "vector" else "l2_norm"
            conditions.append(f"{norm}({vector}) > 0")
        return " AND ".join(conditions)

    def _uri(self, t: str) -> str:
        if self.binding.uri is None:
            return "NULL::text"
        uri = f"{t}.{quoted(self.binding.uri)}::text"
        return f"CASE WHEN octet_length({uri}) <= {URI_BYTES} THEN {uri} END"

    def _payload(self, t: str) -> str:
        parts = ", ".join(
            f"{literal(name)}, to_jsonb({t}.{quoted(name)})" for name in self.binding.payload
        )
        return f"jsonb_strip_nulls(jsonb_build_object({parts}))"

    def digest(self, column: str | None = None) -> str:
        """Of the image and its vector: what a new vector is made from."""
        sent = "vector_send" if self.binding.vector_type == "vector" else "halfvec_send"
        vector = f"{sent}(t.{quoted(column or self.binding.vector)})"
        uri = f"convert_to(coalesce({self._uri('t')}, ''), 'UTF8')"
        return f"md5(coalesce({vector}, ''::bytea) || '\\x00'::bytea || {uri})::uuid"

    # ---- tables and views

    def tables(self) -> Iterator[str]:
        key = self.binding.id_type
        yield (
            f'CREATE TABLE {self.name("adopted")} ("row" bigint PRIMARY KEY, key {key} NOT NULL '
            "UNIQUE, digest uuid NOT NULL, other uuid)"  # other: with the column of a hand-over
        )
        yield (
            f"CREATE TABLE {self.name('missed')} (line bigint GENERATED ALWAYS AS IDENTITY PRIMARY "
            f"KEY, moment timestamptz NOT NULL DEFAULT now(), reason text NOT NULL, keys {key}[])"
        )

    def view(self, number: int, column: str, *, indexed: str | None) -> str:
        """Vectors of a space that are a column of the application's, as the engine reads them."""
        held = f"t.{quoted(column)}"
        kind = self.binding.vector_type
        vector = held if kind == "vector" and not self._untyped else f"{held}::vector({self._dim})"
        compared = held if indexed in (None, kind) and not self._untyped else (
            f"{held}::{indexed or kind}({self._dim})"
        )  # fmt: skip
        return (
            f'CREATE VIEW {self.name(f"vectors_{int(number)}")} AS SELECT a."row", {vector} AS '
            f"vector, {compared} AS indexed FROM {self.name('adopted')} a JOIN "
            f"{self.binding.relation} t ON t.{quoted(self.binding.id)} = a.key "
            f"WHERE {self.usable(column)}"
        )

    # ---- functions

    def functions(self) -> Iterator[str]:
        yield self._apply_function()
        yield self._capture_function()

    def _definer(self) -> str:
        """With the rights of the gallery's owner, for any role that writes to the table."""
        path = ", ".join(map(quoted, dict.fromkeys((self._schema, self._extension))))
        return (
            f"LANGUAGE plpgsql SECURITY DEFINER SET search_path = {path}, pg_temp "
            f"SET lock_timeout = '{LOCK_WAIT}'"
        )

    def _apply_function(self) -> str:
        binding = self.binding
        relation, id = binding.relation, f"t.{quoted(binding.id)}"
        items, adopted, stored = self.name("items"), self.name("adopted"), self.name("stored")
        work, spaces = self.name("work"), self.name("spaces")
        number = binding.number
        bound = "NULL" if number is None else str(int(number))
        side = [str(int(one)) for one in binding.columns]
        rows = literal(self.name("row_numbers"))
        lock = literal(f"midspan {self.prefix.removesuffix('_')}")
        control = r"'[\u0001-\u001f\u007f-\u009f]'"
        valid = f"octet_length({id}::text) BETWEEN 1 AND {ID_BYTES} AND {id}::text !~ {control}"
        now = "extract(epoch FROM clock_timestamp())::float8"
        return f"""
CREATE OR REPLACE FUNCTION {self.name("apply")}(given {binding.id_type}[]) RETURNS bigint[]
{self._definer()} AS $body$
DECLARE
  removed bigint[]; replaced bigint[]; annotated bigint[]; stale bigint[];
  added bigint; write_number bigint; one bigint; into_space bigint;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtextextended({lock}, 0));
  PERFORM 1 FROM {adopted} a JOIN {items} i ON i."row" = a."row" WHERE a.key = ANY(given)
    ORDER BY i.id FOR UPDATE OF i;
  SELECT coalesce(array_agg(a."row") FILTER (WHERE {id} IS NULL), '{{}}'),
    coalesce(array_agg(a."row") FILTER (WHERE {id} IS NOT NULL AND
      a.digest <> {self.digest()}), '{{}}'),
    coalesce(array_agg(a."row") FILTER (WHERE {id} IS NOT NULL AND
      a.digest = {self.digest()} AND i.payload <> {self._payload("t")}), '{{}}')
    INTO removed, replaced, annotated
    FROM {adopted} a JOIN {items} i ON i."row" = a."row" LEFT JOIN {relation} t ON {id} = a.key
    WHERE a.key = ANY(given);
  write_number := nextval({literal(self.name("sequence"))});
  stale := removed || replaced;
  IF cardinality(stale) > 0 THEN
    FOR one IN SELECT number FROM {spaces} LOOP
      DELETE FROM {stored} WHERE space = one AND "row" = ANY(stale);
      IF one NOT IN ({", ".join([*side, "-1"])}) THEN
        EXECUTE format('DELETE FROM %I.%I WHERE "row" = ANY($1)', {literal(self._schema)},
          {literal(self.prefix + "vectors_")} || one) USING stale;
      END IF;
    END LOOP;
    DELETE FROM {work} WHERE "row" = ANY(stale);
    DELETE FROM {items} WHERE "row" = ANY(removed);
    DELETE FROM {adopted} WHERE "row" = ANY(removed);
  END IF;
  IF cardinality(replaced) > 0 THEN
    UPDATE {items} i SET "row" = nextval({rows}), revision = i.revision + 1,
      uri = {self._uri("t")}, payload = {self._payload("t")}, changed = {now},
      sequence = write_number
      FROM {adopted} a JOIN {relation} t ON {id} = a.key
      WHERE a."row" = i."row" AND a."row" = ANY(replaced);
    UPDATE {adopted} a SET "row" = i."row", digest = {self.digest()}, other = NULL
      FROM {items} i, {relation} t
      WHERE a."row" = ANY(replaced) AND i.id = a.key::text AND {id} = a.key;
  END IF;
  IF cardinality(annotated) > 0 THEN
    UPDATE {items} i SET payload = {self._payload("t")}, changed = {now}, sequence = write_number
      FROM {adopted} a JOIN {relation} t ON {id} = a.key
      WHERE a."row" = i."row" AND a."row" = ANY(annotated);
  END IF;
  INSERT INTO {items} ("row", id, uri, payload, revision, created, changed, sequence)
    SELECT nextval({rows}), {id}::text, {self._uri("t")}, {self._payload("t")}, 1, {now}, {now},
      write_number FROM {relation} t WHERE {id} = ANY(given) AND {valid}
      AND NOT EXISTS (SELECT 1 FROM {adopted} a WHERE a.key = {id});
  GET DIAGNOSTICS added = ROW_COUNT;
  IF added > 0 THEN
    INSERT INTO {adopted} ("row", key, digest)
      SELECT i."row", {id}, {self.digest()} FROM {relation} t JOIN {items} i
      ON i.id = {id}::text WHERE {id} = ANY(given)
      AND NOT EXISTS (SELECT 1 FROM {adopted} a WHERE a.key = {id});
  END IF;
  IF added > 0 OR cardinality(replaced) > 0 THEN
    into_space := {bound};
    IF into_space IS NOT NULL THEN
      INSERT INTO {stored} (space, "row") SELECT into_space, a."row" FROM {adopted} a
        JOIN {relation} t ON {id} = a.key WHERE a.key = ANY(given)
        AND {self.usable(binding.vector)} ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO {work} ("row") SELECT a."row" FROM {adopted} a CROSS JOIN {spaces} s
      WHERE a.key = ANY(given) AND s.fingerprint = (SELECT target FROM {self.name("gallery")})
      AND NOT EXISTS (SELECT 1 FROM {stored} v WHERE v.space = s.number AND v."row" = a."row")
      ON CONFLICT DO NOTHING;
  END IF;
  RETURN ARRAY[added, cardinality(replaced), cardinality(annotated), cardinality(removed)];
END $body$"""

    def _capture_function(self) -> str:
        binding, missed = self.binding, self.name("missed")
        key = quoted(binding.id)
        watched = [quoted(binding.vector)]
        if binding.uri is not None:
            watched.append(f"{quoted(binding.uri)}::text")
        differs = " OR ".join(
            [
                *(f"o.{name} IS DISTINCT FROM n.{name}" for name in watched),
                f"{self._payload('o')} IS DISTINCT FROM {self._payload('n')}",
            ]
        )
        return f"""
CREATE OR REPLACE FUNCTION {self.name("capture")}() RETURNS trigger {self._definer()} AS $body$
DECLARE changed {binding.id_type}[];
BEGIN
  IF TG_OP = 'INSERT' THEN
    changed := ARRAY(SELECT {key} FROM new_rows);
  ELSIF TG_OP = 'DELETE' THEN
    changed := ARRAY(SELECT {key} FROM old_rows);
  ELSIF TG_OP = 'UPDATE' THEN
    changed := ARRAY(SELECT coalesce(o.{key}, n.{key}) FROM old_rows o FULL JOIN new_rows n
      ON o.{key} = n.{key} WHERE o.{key} IS NULL OR n.{key} IS NULL OR {differs});
  ELSE
    changed := ARRAY(SELECT key FROM {self.name("adopted")});
  END IF;
  IF cardinality(changed) = 0 THEN
    RETURN NULL;
  END IF;
  BEGIN
    PERFORM {self.name("apply")}(changed);
  EXCEPTION WHEN OTHERS THEN
    INSERT INTO {missed} (reason, keys) VALUES (SQLERRM, changed);
  END;
  RETURN NULL;
END $body$"""

    def triggers(self) -> Iterator[str]:
        for event, tables in TRIGGERS.items():
            yield (
                f"CREATE TRIGGER {quoted(self._trigger(event))} AFTER {event} ON "
                f"{self.binding.relation} {tables} FOR EACH STATEMENT EXECUTE FUNCTION "
                f"{self.name('capture')}()"
            )

    def _trigger(self, event: str) -> str:
        return f"{self.prefix}capture_{event.lower()}"

    def remove(self) -> Iterator[str]:
        for event in TRIGGERS:
            name = quoted(self._trigger(event))
            yield f"DROP TRIGGER IF EXISTS {name} ON {self.binding.relation}"
        yield f"DROP FUNCTION IF EXISTS {self.name('capture')}()"
        yield f"DROP FUNCTION IF EXISTS {self.name('apply')}({self.binding.id_type}[])"

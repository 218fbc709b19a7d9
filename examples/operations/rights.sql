-- PostgreSQL: tables in a schema of their own (rowmq migrate --schema rowmq), for a user that only works.
GRANT USAGE ON SCHEMA rowmq TO worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA rowmq TO worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA rowmq TO worker;

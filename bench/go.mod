module github.com/sqlstreams/sqlstreams/bench

go 1.26.0

require (
	github.com/google/uuid v1.6.0
	github.com/jackc/pgx/v5 v5.13.0
	github.com/sqlstreams/sqlstreams v0.0.0-00010101000000-000000000000
)

replace github.com/sqlstreams/sqlstreams => ../

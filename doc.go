// Package sqlstreams is a messaging platform that is just Postgres: append-only streams, independent consumer groups, leases, timeouts, retries and dead letters, with no broker
// and no extension. Producing joins the caller's own transaction.
//
//	client, err := sqlstreams.NewClient(ctx, pool, nil)
//	emails, err := sqlstreams.RegisterStream[WelcomeEmail](ctx, client, "signup.welcome-email", nil)
//	_, err = emails.Producer(nil).Produce(ctx, &WelcomeEmail{UserID: "u-1"}, nil)
//
//	instance, err := emails.RegisterConsumer(ctx, "email-sender", nil)
//	err = instance.Consume(ctx, func(ctx context.Context, email *WelcomeEmail) error { return send(ctx, email) }, nil)
//
// Register declares (creates or updates, says which), Get and List read, Delete removes, …Tx joins the caller's transaction. A …Config describes an entity and is stored with it,
// …Options belong to one call; both may be nil, are never changed and never kept. Zero means unset, so the default; negative is an error, except Off where a field offers it.
//
// Every group receives every message at least once. Nothing that another transaction does, or leaves open, makes a message wait or be skipped.
package sqlstreams

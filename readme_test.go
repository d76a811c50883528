package sqlstreams_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// The README's shorter snippets, run as they stand there. (Its quickstart is a program under examples.)
func TestReadmeSnippets(t *testing.T) {
	ctx := t.Context()
	client, db, _ := open(t, nil)
	db.Exec(t, `create table users (id text primary key)`)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	producer := emails.Producer(nil)

	var err error
	err = client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into users (id) values ($1)`, "u-2"); err != nil {
			return err
		}
		_, err := producer.ProduceTx(ctx, tx, &WelcomeEmail{UserID: "u-2"}, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	instance, err := emails.RegisterConsumer(ctx, "email-sender", &sqlstreams.ConsumerConfig{
		Message: &sqlstreams.MessageOptions{Timeout: 5 * time.Second, MaxAttempts: 5},
	})
	if err != nil {
		t.Fatal(err)
	}
	var seen tally
	consume(t, instance, nil, func(_ context.Context, email *WelcomeEmail) error { seen.add(email.UserID); return nil })
	pgtest.Eventually(t, 10*time.Second, "the message of the transaction", func() bool { return seen.count("u-2") == 1 })
}

// Each snippet of the README stands in a program or test that runs.
func TestReadmeSnippetsAreTheOnesThatRun(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(readme), "```go\n")[1:]
	if len(blocks) < 3 {
		t.Fatalf("%d snippets", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if strings.HasPrefix(block, "package main") {
			continue // compared with examples/quickstart there
		}
		if !strings.Contains(unindented(string(source)), unindented(block)) {
			t.Errorf("the test above does not run this snippet:\n%s", block)
		}
	}
}

func unindented(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimLeft(line, "\t"))
	}
	return b.String()
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Keyed says whether a message of the batch has an idempotency key.
func Keyed(batch []Outgoing) bool {
	for i := range batch {
		if batch[i].IdempotencyKey != "" {
			return true
		}
	}
	return false
}

// KeyedRequest is a batch of which some messages carry idempotency keys, all or nothing but for duplicates.
type KeyedRequest struct {
	Stream   int
	Kind     string
	Batch    uuid.UUID     // the same again is the same call
	Window   time.Duration // for how long the keys are kept
	Messages []Outgoing
}

// KeyedResult says what became of one message.
type KeyedResult struct {
	Duplicate bool
	Original  int64 // of a duplicate: the id of the first message with the key; 0: it waits for its id
}

// args are texts and integers, so that any driver and the simple protocol can send them.
func (r *KeyedRequest) args() []any {
	p := pack(r.Kind, r.Messages)
	var bytes, versions *string
	if p.bytes != nil {
		bytes = ptr(byteaArray(p.bytes))
	}
	if p.versions != nil {
		versions = ptr(integerArray(p.versions))
	}
	keys := column(r.Messages, true, func(o *Outgoing) []byte { return []byte(o.IdempotencyKey) })
	return []any{r.Stream, r.Kind, r.Batch.String(), r.Window.Milliseconds(), keys, p.payloads, bytes, versions, p.keys, p.routingKeys, p.headers, p.options}
}

// ProduceKeyed stores a batch in a transaction of its own. If its outcome is unknown it is repeated under the same Batch.
func (s *Store) ProduceKeyed(ctx context.Context, r *KeyedRequest) ([]KeyedResult, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "stream " + strconv.Itoa(r.Stream)
	conn, err := s.acquireProduce(ctx)
	if err != nil {
		return nil, ClassifyNoEffect("produce to", object, err)
	}
	defer conn.Release()
	return r.result(conn.QueryRow(ctx, s.text["produce_keyed"], r.args()...).Scan, Classify)
}

// PutKeyedTx is ProduceKeyed in the caller's transaction.
func (s *Store) PutKeyedTx(ctx context.Context, tx pgx.Tx, r *KeyedRequest) ([]KeyedResult, error) {
	return r.result(tx.QueryRow(ctx, s.text["put_keyed"], r.args()...).Scan, ClassifyNoEffect)
}

// PutKeyedSQLTx is PutKeyedTx for database/sql.
func (s *Store) PutKeyedSQLTx(ctx context.Context, tx *sql.Tx, r *KeyedRequest) ([]KeyedResult, error) {
	return r.result(tx.QueryRowContext(ctx, s.text["put_keyed"], r.args()...).Scan, ClassifyNoEffect)
}

func (r *KeyedRequest) result(scan func(...any) error, classify func(op, object string, err error) error) ([]KeyedResult, error) {
	const op = "produce to"
	object := "stream " + strconv.Itoa(r.Stream)
	var outcome string
	var states, ids *string
	if err := scan(&outcome, &states, &ids); err != nil {
		return nil, classify(op, object, err)
	}
	if outcome == "gone" {
		return nil, &diag.Error{Code: diag.StreamNotFound, Op: op, Object: object}
	}
	results, err := parseKeyed(text(states), text(ids), len(r.Messages))
	if err != nil {
		return nil, &diag.Error{Code: diag.DatabaseError, Op: op, Object: object, Err: err}
	}
	return results, nil
}

// parseKeyed reads what put_keyed returns.
func parseKeyed(states, ids string, count int) ([]KeyedResult, error) {
	originals := strings.Split(ids, ",")
	if len(states) != count || len(originals) != count {
		return nil, fmt.Errorf("a batch of %d messages came apart into %d", count, len(states))
	}
	results := make([]KeyedResult, count)
	for i := range results {
		switch states[i] {
		case 'n', 'r':
			continue
		case 'd':
		default:
			return nil, errors.New("a state has another shape than expected")
		}
		results[i].Duplicate = true
		if originals[i] == "" {
			continue
		}
		id, err := strconv.ParseInt(originals[i], 10, 64)
		if err != nil {
			return nil, errors.New("an id has another shape than expected")
		}
		results[i].Original = id
	}
	return results, nil
}

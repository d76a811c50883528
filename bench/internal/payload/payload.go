// Package payload is the message that all programs send: an order as JSON of a given length.
package payload

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Order has what events usually have: identifiers, a time, numbers, a short list, a text.
type Order struct {
	Seq      int64     `json:"seq"`
	ID       string    `json:"id"`
	Customer string    `json:"customer"`
	PlacedAt time.Time `json:"placed_at"`
	Currency string    `json:"currency"`
	Total    int64     `json:"total_cents"`
	Lines    []Line    `json:"lines"`
	Note     string    `json:"note"`
}

// Line is one article of an order.
type Line struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
	Cents    int64  `json:"cents"`
}

// Words of the note: a text of one repeated letter would flatter whatever compresses.
const words = "leave the parcel with the neighbour on the second floor if nobody answers the bell after three attempts "

// New returns order seq, whose JSON has size bytes, or as few as an order can have.
func New(seq int64, size int) (*Order, error) {
	o := &Order{
		Seq: seq, ID: fmt.Sprintf("ord-%012d", seq), Customer: fmt.Sprintf("cus-%08d", seq*7919%100_000_000),
		PlacedAt: time.UnixMicro(1_750_000_000_000_000 + seq*1_000_003%86_400_000_000).UTC().Truncate(time.Millisecond).Add(time.Millisecond / 2),
		Currency: "EUR", Total: 1000 + seq%90_000,
		Lines: []Line{{"sku-100200", 1, 400 + seq%90_000}, {"sku-300400", 2, 150}, {"sku-500600", 3, 100}},
	}
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if missing := size - len(data); missing > 0 {
		o.Note = strings.Repeat(words, missing/len(words)+1)[:missing]
	}
	return o, nil
}

// Set is a number of different orders that producers take in turn, so that building them is in no figure.
type Set struct {
	Orders  []*Order
	Encoded [][]byte
}

// NewSet returns n orders of size bytes each, and their JSON.
func NewSet(n, size int) (*Set, error) {
	s := &Set{}
	for i := range n {
		o, err := New(int64(i), size)
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		s.Orders, s.Encoded = append(s.Orders, o), append(s.Encoded, data)
	}
	return s, nil
}

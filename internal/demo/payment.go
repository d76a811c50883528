package demo

import "fmt"

// Payment is the message. Which bank the card belongs to decides what happens to it.
type Payment struct {
	ID    int64  `json:"id"` // of its row in the table payments
	Card  string `json:"card"`
	Bank  string `json:"bank"`
	Cents int64  `json:"cents"`
}

// The banks. What is not one of these answers at once.
const (
	slowBank  = "slow-bank"  // takes most of the time that a handler has
	stuckBank = "stuck-bank" // never answers the first time, and the handler waits for it without regard to its context
	busyBank  = "busy-bank"  // answers 503 twice
	newBank   = "new-bank"   // unknown until it gets a row in the table bank
)

// busyFor is how many answers of busyBank are failures.
const busyFor = 2

// ordinaryBank returns a bank that answers at once.
func ordinaryBank(i int) string {
	names := [...]string{"harbour-bank", "river-bank", "hill-bank"}
	return names[i%len(names)]
}

// invoice makes the i-th payment. It has no id yet: its row gives it one.
func invoice(i int, bank string) Payment {
	return Payment{Card: fmt.Sprintf("%04d", 1000+i*37%9000), Bank: bank, Cents: int64(100 + i*271%9900)}
}

// handlingError is what a handler says of a payment; nil: it may be charged.
func handlingError(p *Payment, attempt int, known bool) error {
	switch {
	case p.Bank == busyBank && attempt <= busyFor:
		return fmt.Errorf("%s answers 503 Service Unavailable", p.Bank)
	case p.Bank == newBank && !known:
		return &refusedError{card: p.Card, bank: p.Bank}
	}
	return nil
}

// refusedError says that trying again is of no use.
type refusedError struct{ card, bank string }

func (e *refusedError) Error() string {
	return fmt.Sprintf("card ending in %s refused: no contract with %s", e.card, e.bank)
}

// Package demo tells in half a minute, with real processes on a real Postgres, what happens to payments when instances are killed and handlers
// hang, fail and are refused; and counts at the end what was lost.
//
// # Who does what
//
//	parent    produces at a steady rate, each payment in a transaction with its business row; kills, operates and counts
//	children  the same program started again (Child): two instances of charge-cards, one of audit-payments
//
// A child ends when its standard input does, which the parent's death closes too. Whoever is started is awaited, whatever happens.
//
// # What is believed
//
// Two schemas of the demo's own: one is the installation, the other holds the business tables payments, bank, run, charge and audit. A handler
// writes that it begins into run, and its effect into charge or audit, under the payment's id, with how often that was done. What the story says was
// read from these tables, from the product's calls for operators, or from a process; what went wrong and when is decided by the payments' banks
// (payment.go), so that every run tells the same story.
//
// # The end
//
// A payment is lost if a group has not handled it once the product says that everything is finished. If it never says so, or anything else keeps
// the story from its end, then what was lost is unknown, and Run says that and no number.
package demo

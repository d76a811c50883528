// Package seeds holds the tests that build programs in a module of their own against this one, as a user's program is built.
//
// The handlers in testdata are those of the page on consumer timeouts, letter for letter: the one that ignores its context, and the one that passes it on.
package seeds

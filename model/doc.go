// Package model holds the protocol in Promela: see README.md. It has no Go code but the test that runs it.
package model

// Package cli is the command line: what operators and scripts do with an installation.
//
// One file holds one group of commands; commandGroups in root.go lists their constructors. A command reads its input from an Env, writes what it was asked for to
// standard output and everything else to standard error, and ends with one of three exit codes.
//
// Results go through app.show (one document) or app.line (one line an object), so that each command has the same three forms: a table for people, the
// same with more columns, JSON for programs. The JSON is a promise: snake_case keys that are always present, numbers for ids, RFC 3339 times with their zone,
// null for a time that there is not, arrays for lists.
package cli

// Package docs holds the tests that run the code of the pages in docs/.
//
// A Go block of a page stands here, word for word but for its indentation, between a comment such as "// doc: concepts/leases" (the page and a name) and "// doc: end".
// A block that is a whole program is a main.go. A test of the root package holds pages and code together.
package docs

// Package archtest holds the tests of what no single package can test about itself: which packages may import which, what the published package
// links, the rules of the house for Go and SQL, and that nothing in the tree depends on the machine it was written on.
//
// There is no code here but tests. Each rule is a function over source text, so that a second test can show it text that it must refuse.
package archtest

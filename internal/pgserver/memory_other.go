//go:build !linux

package pgserver

// memoryFolder finds none: other systems have no such folder by default.
func memoryFolder(uint64) string { return "" }

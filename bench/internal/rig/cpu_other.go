//go:build !linux

package rig

import "time"

// CPU is not known here.
func (s *Server) CPU() time.Duration { return 0 }

// Used is not known here.
func Used(int) time.Duration { return 0 }

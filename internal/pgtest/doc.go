// Package pgtest gives tests servers and databases of their own.
//
// A test binary has one server, started at the first use and shared by its
// tests; each test gets a database on it. TestMain ends it:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// Without that the server's watchdog ends it when the binary exits.
//
// A database belongs to the role Owner, which may create roles and databases
// and is no superuser, as on a managed service: what works for it works there.
// DSN, Pool, Conn and Exec use that role.
//
// A test that cannot have what it asks for fails; nothing here skips.
//
// Tests that look for leaked goroutines should start the shared server first
// (SharedServer) and ignore what runs then.
package pgtest

// Package sqlite keeps a ledger in one SQLite file: a [ledger.Store] whose facts survive the death of
// the process and of the machine.
//
// [Open] opens a file; [New] takes a handle that the caller opened with any driver name of
// modernc.org/sqlite. [OpenReader] looks at a ledger while a server has it open.
//
// # Durability
//
// The file is in WAL mode with synchronous=FULL, so a change is on the disk before its call returns.
// All changes go through one goroutine, which the store owns and [Store.Close] ends: it commits what
// several turns want at the same time in one transaction and one fsync, each in a savepoint of its
// own, so that what is refused in one has no effect on the others. A call whose context ends while it
// waits for its place changes nothing; once it has one it is finished.
//
// Where the disk itself fails, by an I/O error, the store takes no more changes and [Store.Ping]
// fails: nothing is known then about what reached the disk, and only SQLite's recovery at the next
// start finds out. That is the one case in which a change may be found committed whose call returned
// an error.
//
// # One process
//
// One store at a time has a file, in this process or another. That is held by a lock on a second file
// beside it (named as the ledger, with "-lock" behind), which the system drops with the process, however
// it dies; [ErrInUse] reports it. Readers are not concerned. Nothing but SQLite may touch the files
// that end in -wal and -shm: after a crash they hold facts.
//
// Another program may hold a transaction on the file for a while. Changes wait for it as long as their
// contexts allow, and the write-ahead log is worked off as soon as it lets them.
package sqlite

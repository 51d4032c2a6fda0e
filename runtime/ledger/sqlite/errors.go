package sqlite

import (
	"errors"
	"fmt"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Why a file cannot be opened as a ledger. Each error that wraps one says in one line what to do.
var (
	// ErrInUse reports that another store has the file.
	ErrInUse = errors.New("in use")
	// ErrNewer reports that the file was written by a later version of Backline.
	ErrNewer = errors.New("written by a later version")
	// ErrNoLedger reports that the file is something else.
	ErrNoLedger = errors.New("not a ledger")
	// ErrDamaged reports that the file, or what belongs to it, is damaged or missing.
	ErrDamaged = errors.New("damaged")
	// ErrNotWritable reports that the file, or its folder, cannot be written.
	ErrNotWritable = errors.New("not writable")
	// ErrDisk reports that the disk failed or is full.
	ErrDisk = errors.New("disk error")
)

// codeOf is the primary result code of SQLite, 0 for errors that are not SQLite's.
func codeOf(err error) int {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

func isBusy(err error) bool {
	code := codeOf(err)
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}

// explain says in one line what is the matter with a file, and what to do.
func explain(path string, err error) error {
	if err == nil {
		return nil
	}
	var kind error
	var advice string
	switch codeOf(err) {
	case sqlite3.SQLITE_NOTADB:
		kind, advice = ErrNoLedger, "it is no SQLite database; name another file"
	case sqlite3.SQLITE_CORRUPT:
		kind, advice = ErrDamaged, "keep it and restore a copy, with the files that end in -wal and -shm if the copy has them"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		kind, advice = ErrNotWritable, "give this user the right to write the file and its folder"
	case sqlite3.SQLITE_CANTOPEN:
		kind, advice = ErrNotWritable, "it cannot be opened; give this user the right to write the file and its folder"
	case sqlite3.SQLITE_FULL:
		kind, advice = ErrDisk, "the disk is full; make room"
	case sqlite3.SQLITE_IOERR:
		kind, advice = ErrDisk, "the disk failed; look at the system's log, then start again"
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		kind, advice = ErrInUse, "another program holds a transaction on it; end that program"
	default:
		return fmt.Errorf("ledger %s: %w", path, err)
	}
	return fmt.Errorf("ledger %s is %w: %s (%w)", path, kind, advice, err)
}

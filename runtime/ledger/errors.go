package ledger

import "errors"

// What a caller branches on. A store's errors wrap these; after any of them nothing was changed.
var (
	// ErrNotFound reports that there is no such row.
	ErrNotFound = errors.New("ledger: not found")

	// ErrConflict reports that a row is not in the version or state that the call named: somebody
	// else changed it. The caller reads it again and decides.
	ErrConflict = errors.New("ledger: changed by somebody else")

	// ErrMismatch reports that an idempotency key, or a turn's ref, is known from a request with
	// other bytes. It stays so whatever became of the first.
	ErrMismatch = errors.New("ledger: known from another request")

	// ErrInvalid reports arguments that no row can have. It is a mistake of the caller's program.
	ErrInvalid = errors.New("ledger: invalid argument")

	// ErrTooLarge reports content or a document over its limit ([Limits]).
	ErrTooLarge = errors.New("ledger: too large")

	// ErrFull reports that as many turn ids are claimed by running turns as the store remembers.
	ErrFull = errors.New("ledger: no room for another claim")

	// ErrClosed reports that the store is closed.
	ErrClosed = errors.New("ledger: closed")
)

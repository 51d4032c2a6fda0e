package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/backline-dev/backline/runtime/ledger"
)

// Config tunes a [Store]. The zero value is ready to use.
type Config struct {
	Limits ledger.Limits
	// Readers is how many connections read at the same time; 0 means 4.
	Readers int
}

// A Store is a [ledger.Store] in one SQLite file. Make one with [Open] or [New].
type Store struct {
	*pool
	conf   Config
	writer *writer
	lock   *sql.DB
	db     *sql.DB // nil where the caller closes it
	wake   chan struct{}
	done   chan struct{} // closed when the writer is gone

	copier   *conn
	copyWake chan struct{} // has room for one; only the writer sends
	copyDone chan struct{} // closed when the copier is gone
	copying  atomic.Bool

	closeOnce sync.Once
	closeErr  error

	mu       sync.Mutex
	queue    []*change
	closing  bool
	brokenBy error
}

var _ ledger.Store = (*Store)(nil)

// A Reader looks at a ledger that a server may have open, in this process or another. It changes
// nothing, takes no lock that the server would notice, and may be opened any number of times.
type Reader struct {
	*pool
	db    *sql.DB
	alone bool // there was no log beside the file when it was opened
}

var _ ledger.Reader = (*Reader)(nil)

// applicationID marks the file as a ledger of Backline ("BKLN").
const applicationID = 0x424b4c4e

// Open opens the ledger in a file and takes it: until [Store.Close] no other store can have it. A file
// that is not there is made, readable by this user alone, in a folder that is. Whatever is wrong with a
// file that is there, it is left as it is: see [ErrInUse], [ErrNewer], [ErrNoLedger], [ErrDamaged],
// [ErrNotWritable] and [ErrDisk].
func Open(ctx context.Context, path string, conf Config) (_ *Store, err error) {
	path, err = resolve(path)
	if err != nil {
		return nil, err
	}
	lock, err := takeLock(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := lookAtFile(ctx, path); err != nil {
		return nil, err
	}
	db, err := openHandle(path, "rw")
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, db, path, lock, conf)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.db = db
	return s, nil
}

// New opens the ledger behind a handle of the driver modernc.org/sqlite, and takes it as [Open] does.
// A database without any table becomes a ledger. The store sets what it needs on connections of its
// own, which it keeps until it is closed, and the handle must allow them: [Config.Readers] plus 2. The
// caller closes the handle after the store.
func New(ctx context.Context, db *sql.DB, conf Config) (_ *Store, err error) {
	var path string
	if err := db.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path); err != nil {
		return nil, explain("of this handle", err)
	}
	if path == "" {
		return nil, errors.New("ledger: the handle's database is in memory and each connection would have its own; use ledger.NewMemory")
	}
	if path, err = resolve(path); err != nil {
		return nil, err
	}
	lock, err := takeLock(ctx, path)
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, db, path, lock, conf)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// OpenReader opens a ledger for looking at it. The file must be there.
func OpenReader(ctx context.Context, path string) (_ *Reader, err error) {
	path, err = resolve(path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("ledger %s cannot be read: %w", path, err)
	} else if info.Size() == 0 {
		return nil, fmt.Errorf("ledger %s is %w: it is empty", path, ErrNoLedger)
	}
	_, err = os.Lstat(path + "-wal")
	alone := errors.Is(err, fs.ErrNotExist)
	db, err := openHandle(path, "ro")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && alone {
			tidy(ctx, path)
		}
	}()
	c, err := newConn(ctx, db, true)
	if err != nil {
		return nil, errors.Join(explain(path, err), db.Close())
	}
	version, err := versionOf(ctx, c, path)
	if err == nil && version == 0 {
		err = fmt.Errorf("ledger %s is %w: it is a database without a ledger in it", path, ErrNoLedger)
	}
	if err == nil && version != len(migrations) {
		err = fmt.Errorf("ledger %s has schema %d, and this version reads schema %d: start the server on it once, then look again", path, version, len(migrations))
	}
	if err != nil {
		return nil, errors.Join(err, c.close(), db.Close())
	}
	return &Reader{newPool(path, []*conn{c}), db, alone}, nil
}

// Close ends the reader. It may be called twice.
func (r *Reader) Close() error {
	err := errors.Join(r.pool.close(), r.db.Close())
	if r.alone {
		r.alone = false
		tidy(context.Background(), r.path)
	}
	return err
}

// tidy takes away the empty log that SQLite makes for a reader of a file that was closed in order, and that a
// reader cannot take away itself. SQLite does it when the last connection is closed that may write: if a server
// has the file by now it does nothing, and neither where this user may not write.
func tidy(ctx context.Context, path string) {
	db, err := openHandle(path, "rw")
	if err != nil {
		return
	}
	var n int
	_ = db.QueryRowContext(ctx, `SELECT COUNT(*) FROM sqlite_schema`).Scan(&n) // a connection that has read nothing has no log
	_ = db.Close()
}

// Close implements [ledger.Store].
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		select {
		case s.wake <- struct{}{}:
		default:
		}
		<-s.done
		close(s.copyWake)
		<-s.copyDone
		errs := []error{s.pool.close(), s.copier.close(), s.writer.close()}
		if s.db != nil {
			errs = append(errs, s.db.Close())
		}
		s.closeErr = errors.Join(append(errs, s.lock.Close())...)
	})
	return s.closeErr
}

// resolve makes one name of all names that a file has by symbolic links and relative paths.
func resolve(path string) (string, error) {
	if path == "" {
		return "", errors.New("ledger: the file has no name")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		// The file may be new, its folder may not. A link to a file that is missing is no new file: its
		// disk may not be there.
		if _, err := os.Lstat(abs); err == nil {
			return "", fmt.Errorf("ledger %s is %w: it is a link to a file that is not there; put the file back, or remove the link to begin a new ledger", path, ErrDamaged)
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return "", fmt.Errorf("ledger %s cannot be made: its folder cannot be opened (%w); make the folder first", path, err)
		}
		return filepath.Join(dir, filepath.Base(abs)), nil
	}
	if err != nil {
		return "", fmt.Errorf("ledger %s cannot be opened: %w", path, err)
	}
	return real, nil
}

// openHandle makes a handle for a file, which is never made by it but in the mode "rwc".
func openHandle(path, mode string) (*sql.DB, error) {
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // a drive of Windows
	}
	name := url.URL{Scheme: "file", Path: slashed, RawQuery: "mode=" + mode + "&_error_rc=1&_dqs=0"}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, explain(path, err)
	}
	return db, nil
}

// takeLock takes the exclusive right to a ledger: SQLite's exclusive lock on a file beside it, which
// stays empty. It ends with the returned handle or the process. It is SQLite's own locking, so it works
// on every system where the ledger does.
func takeLock(ctx context.Context, path string) (_ *sql.DB, err error) {
	_, err = os.Lstat(path + "-lock")
	fresh := errors.Is(err, fs.ErrNotExist)
	db, err := openHandle(path+"-lock", "rwc")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	notWritable := fmt.Errorf("ledger %s is %w: the file %s-lock beside it cannot be made or written; give this user the right to write both and their folder",
		path, ErrNotWritable, filepath.Base(path))
	c, err := db.Conn(ctx)
	if err == nil {
		// On a file that is read-only SQLite would begin a read transaction instead, which excludes
		// nobody.
		var readOnly bool
		err = c.Raw(func(dc any) (err error) {
			readOnly, err = dc.(interface{ IsReadOnly(string) (bool, error) }).IsReadOnly("main")
			return err
		})
		if err = errors.Join(err, c.Close()); err == nil && readOnly {
			return nil, notWritable
		}
	}
	if fresh {
		// SQLite makes it for everybody to read, and its journal with the rights that it has. It is not made
		// here beforehand: to close a file that SQLite has locked in this process would end the lock.
		_ = os.Chmod(path+"-lock", 0o600) // there is nothing in it
	}
	if err == nil {
		_, err = db.ExecContext(ctx, `BEGIN EXCLUSIVE`)
	}
	switch code := codeOf(err); {
	case err == nil:
		return db, nil
	case isBusy(err):
		return nil, fmt.Errorf("ledger %s is %w by another process: stop that one, or name another file", path, ErrInUse)
	case code == sqlite3.SQLITE_CANTOPEN, code == sqlite3.SQLITE_READONLY:
		return nil, notWritable
	default:
		return nil, explain(path+"-lock", err)
	}
}

// lookAtFile makes the file if there is none, and refuses what SQLite would take for a new database.
func lookAtFile(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for _, end := range []string{"-wal", "-journal"} {
			if _, err := os.Stat(path + end); err == nil {
				return fmt.Errorf("ledger %s is %w: the file is gone and %s%s is still there; put the file back, or move that one away to begin a new ledger",
					path, ErrDamaged, filepath.Base(path), end)
			}
		}
		return create(ctx, path)
	case err != nil:
		return fmt.Errorf("ledger %s cannot be opened: %w", path, err)
	case info.IsDir():
		return fmt.Errorf("ledger %s is %w: it is a folder; name a file in it", path, ErrNoLedger)
	case info.Size() == 0:
		return fmt.Errorf("ledger %s is %w: it is empty; restore a copy, or remove it to begin a new ledger", path, ErrNoLedger)
	}
	return nil
}

// create makes a new ledger under another name and renames it when it is whole, so that a ledger that
// is there always is one, whenever the process dies. The caller has the lock.
func create(ctx context.Context, path string) (err error) {
	fresh := path + "-new"
	for _, end := range []string{"", "-journal", "-wal", "-shm"} {
		if err := os.Remove(fresh + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("ledger %s cannot be made: %w", path, err)
		}
	}
	f, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("ledger %s cannot be made: %w; give this user the right to write the folder", path, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := openHandle(fresh, "rw")
	if err != nil {
		return err
	}
	c, err := newConn(ctx, db, false)
	if err == nil {
		err = errors.Join(migrate(ctx, c, fresh), c.close())
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return explain(path, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("ledger %s cannot be made: %w", path, err)
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder has a new name in a folder survive a power cut, where the system can do that.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrInvalid) || errors.Is(err, fs.ErrPermission) {
		err = nil // Windows has no such thing
	}
	return errors.Join(err, d.Close())
}

// start opens a ledger whose lock is taken.
func start(ctx context.Context, db *sql.DB, path string, lock *sql.DB, conf Config) (_ *Store, err error) {
	conf.Limits = conf.Limits.WithDefaults()
	if conf.Readers == 0 {
		conf.Readers = 4
	}
	if conf.Readers < 1 {
		return nil, fmt.Errorf("ledger: Readers is %d, want at least 1", conf.Readers)
	}
	if max := db.Stats().MaxOpenConnections; max > 0 && max < conf.Readers+2 {
		return nil, fmt.Errorf("ledger %s: the handle allows %d connections, and the store needs %d", path, max, conf.Readers+2)
	}
	var conns []*conn
	defer func() {
		if err != nil {
			for _, c := range conns {
				err = errors.Join(err, c.close())
			}
		}
	}()
	open := func(readOnly bool) (*conn, error) {
		c, err := newConn(ctx, db, readOnly)
		if err != nil {
			return nil, explain(path, err)
		}
		conns = append(conns, c)
		return c, nil
	}
	c, err := open(false)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, c, path); err != nil {
		return nil, err
	}
	var mode string
	if err := c.sql.QueryRowContext(ctx, `PRAGMA journal_mode = WAL`).Scan(&mode); err != nil {
		return nil, explain(path, err)
	}
	if mode != "wal" {
		return nil, fmt.Errorf("ledger %s: the disk does not allow a write-ahead log (journal mode is %s); put the file on a local disk", path, mode)
	}
	w := &writer{conn: c, claims: -1}
	if err := w.look(); err != nil {
		return nil, explain(path, err)
	}
	s := &Store{conf: conf, writer: w, lock: lock, wake: make(chan struct{}, 1), done: make(chan struct{}),
		copyWake: make(chan struct{}, 1), copyDone: make(chan struct{})}
	var readers []*conn
	for range conf.Readers {
		r, err := open(true)
		if err != nil {
			return nil, err
		}
		readers = append(readers, r)
	}
	s.pool = newPool(path, readers)
	if s.copier, err = open(false); err != nil {
		return nil, err
	}
	go s.loop()
	go s.copyLog()
	return s, nil
}

// look reads where the numbers go on, and at least one row of every table: a damaged file is better
// found at the start than by a turn.
func (w *writer) look() error {
	if _, err := w.one(`SELECT (SELECT COALESCE(MAX(seq), 0) FROM turns), (SELECT COALESCE(MAX(seq), 0) FROM parts)`, nil, &w.turnSeq, &w.partSeq); err != nil {
		return err
	}
	for _, table := range []string{"turns", "parts", "outcomes", "ends", "products", "sessions", "admissions", "superseded", "claims"} {
		for _, order := range []string{"ASC", "DESC"} {
			key := "rowid"
			if table == "superseded" {
				key = "kind"
			}
			if err := w.all(context.Background(), fmt.Sprintf("SELECT 1 FROM %s ORDER BY %s %s LIMIT 1", table, key, order), nil, func(func(...any) error) error { return nil }); err != nil {
				return err
			}
		}
	}
	return nil
}

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the steps of the schema, in order. A database's user_version says how many it has.
var migrations = readMigrations()

func readMigrations() []string {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		panic(err) // a mistake in the pattern
	}
	var steps []string
	for i, name := range names { // sorted
		if !strings.HasPrefix(filepath.Base(name), fmt.Sprintf("%04d_", i+1)) {
			panic("migration " + name + " is not number " + fmt.Sprint(i+1))
		}
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		steps = append(steps, string(text))
	}
	return steps
}

// versionOf is the number of steps that a database has, 0 for one without any table.
func versionOf(ctx context.Context, c *conn, path string) (int, error) {
	var id, version, tables int
	for query, v := range map[string]*int{`PRAGMA application_id`: &id, `PRAGMA user_version`: &version, `SELECT COUNT(*) FROM sqlite_schema`: &tables} {
		if err := c.sql.QueryRowContext(ctx, query).Scan(v); err != nil {
			return 0, explain(path, err)
		}
	}
	switch {
	case id == 0 && version == 0 && tables == 0:
		return 0, nil
	case id != applicationID:
		return 0, fmt.Errorf("ledger %s is %w: it is a database of another program; name another file", path, ErrNoLedger)
	case version > len(migrations):
		return 0, fmt.Errorf("ledger %s was %w of Backline (schema %d, this one knows %d): run that version, or restore an older copy", path, ErrNewer, version, len(migrations))
	case version < 1 || tables == 0:
		return 0, fmt.Errorf("ledger %s is %w: its tables are gone; restore a copy", path, ErrDamaged)
	}
	return version, nil
}

// maxOpenWait is how many busy timeouts (5 s in all) opening waits for another program's transaction.
const maxOpenWait = 20

// migrate brings a database to the newest schema, in one transaction: all of it, or nothing.
func migrate(ctx context.Context, c *conn, path string) (err error) {
	for waited := 0; ; waited++ {
		_, err := c.sql.ExecContext(ctx, `BEGIN IMMEDIATE`)
		if err == nil {
			break
		}
		if !isBusy(err) || waited == maxOpenWait || ctx.Err() != nil {
			return explain(path, err)
		}
	}
	defer func() {
		if err != nil {
			_, end := c.sql.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
			err = errors.Join(err, end)
		}
	}()
	version, err := versionOf(ctx, c, path)
	if err != nil {
		return err
	}
	for i, step := range migrations[version:] {
		if _, err := c.sql.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("ledger %s: migration %d: %w", path, version+i+1, explain(path, err))
		}
	}
	// This is written also where nothing changes: it finds out whether the file can be written, which
	// BEGIN IMMEDIATE does not (SQLite begins a read transaction on a file that is read-only).
	if _, err := c.sql.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d; %s", applicationID, setVersion)); err != nil {
		return explain(path, err)
	}
	_, err = c.sql.ExecContext(ctx, `COMMIT`)
	return explain(path, err)
}
